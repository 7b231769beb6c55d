"""Fills the placeholders of targets.toml."""

import os
import re


def fill(text, values):
    """`text` with `{name}` replaced from `values` and `{env:NAME}` from the environment.

    Braces around anything else stay, because most templates are JSON.
    """
    text = re.sub(r"\{env:(\w+)\}", lambda match: os.environ.get(match[1], ""), text)
    return re.sub(r"\{(%s)\}" % "|".join(values), lambda match: str(values[match[1]]), text)
