"""The page: where and when, the promises, the comparison. Made of saved results and nothing else."""

from .figures import fmt
from .promises import promises
from .tables import all_tables

INTRODUCTION = """\
# Benchmarks

Written by `bench/run` from what it measured; edits here are lost. `bench/README.md` says how it is measured
and what keeps the numbers honest. Ratios are formed inside one round, between neighbours in time, and shown
as their median and range over the rounds; they carry over to other machines far better than times do.
"""


def page(results):
    lines = [INTRODUCTION, *conditions(results), *promises(results), *all_tables(results), *remarks(results)]
    return "\n".join(lines) + "\n"


def conditions(results):
    machine, options = results["machine"], results["options"]
    load = results.get("load1") or [0]
    short = options["scale"] < 1 or options["rounds"] < 3
    kind = "a short run, not to be quoted" if short else "a full run"
    rounds = f"rounds {options['rounds']}, scale {fmt(options['scale'], 2)}, phases {options['phases']}"
    return [
        f"- machine: {machine['cpu']}, {machine['cpus']} cores, Linux {machine['kernel']}",
        f"- load average (1 min): {fmt(load[0], 2)} at the start, at most {fmt(max(load), 2)}",
        f"- date: {results['started']}; commit: {machine['commit']}",
        f"- {kind}: {rounds}",
    ]


def remarks(results):
    noted = [target for target in results["targets"].values() if target.get("notes")]
    lines = [f"- {target['name']}: {target['notes']}" for target in noted]
    return ["", "## Notes", "", *lines] if lines else []


def merged(several):
    """Results of several runs as one: later ones fill in and replace earlier ones."""
    first, *others = several
    for other in others:
        for key, value in other["targets"].items():
            first["targets"].setdefault(key, {}).update(value)
        first["rounds"] += other["rounds"]
        first["load1"] += other.get("load1", [])
        for part in ("library", "resolve"):
            if part in other:
                first[part] = other[part]
    return first
