"""Where and on what a run was made: enough to judge its numbers, nothing that names the machine."""

import os
import re
import subprocess
from pathlib import Path


def machine(root):
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else os.uname().machine,
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "commit": commit(root),
    }


def commit(root):
    """The commit of the repository, marked when the sources differ from it."""
    head = git(root, "rev-parse", "--short=12", "HEAD")
    if not head:
        return "none"
    changed = git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{head} with changes" if changed else head


def git(root, *words):
    # Reading must not take the lock that another git command may need.
    command = ["git", "-C", str(root), "--no-optional-locks", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
