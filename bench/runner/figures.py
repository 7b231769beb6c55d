"""Numbers out of results: series over rounds, ratios inside a round, and how they are written."""

import statistics

MISSING = "–"


def series(results, shape, key, scenario, field):
    """The field's value per round, None where the scenario failed."""
    values = []
    for record in results["rounds"]:
        if record["shape"] == shape:
            result = record["data"].get(key, {}).get(scenario, {})
            good = result.get(field) is not None and not result.get("failed") and result.get("ok", 1)
            values.append(result[field] if good else None)
    return values


def ratios(values, base):
    """Each value over the base of the same round; rounds that lack either are left out."""
    return [value / below for value, below in zip(values, base) if value is not None and below]


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def scaled(value, factor):
    return None if value is None else value * factor


def fmt(value, digits=1):
    if value is None:
        return MISSING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.0f}"


def spread(values, digits=1):
    """The median of the values and their range."""
    values = [value for value in values if value is not None]
    if not values:
        return MISSING
    return f"{fmt(median(values), digits)} ({fmt(min(values), digits)}–{fmt(max(values), digits)})"


def mib(value, digits=1):
    return fmt(value / 2**20, digits) if value else MISSING


def cell(text, width):
    """`text` fit for a table cell."""
    return " ".join(str(text).split()).replace("|", "/")[:width]


def table(title, header, rows):
    """A section with a table; nothing when no row has anything to show."""
    rows = [row for row in rows if any(part not in (MISSING, "") for part in row[1:])]
    if not rows:
        return []
    lines = ["", f"## {title}", "", line(header), "|" + "---|" * len(header)]
    return lines + [line(row) for row in rows]


def line(cells):
    return "| " + " | ".join(cells) + " |"
