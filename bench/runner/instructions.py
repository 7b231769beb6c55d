"""Instructions per call and per byte, counted by callgrind.

The gateway runs twice under callgrind, with a short and a long run of calls; the difference of the two
counts leaves out starting, listing and stopping. Counts hardly depend on what else the machine does.
"""

import re
import shutil

# name, mcp-load options, calls of the short and of the long run, what one call counts as
SCENARIOS = [
    ("small", ["-c", "1"], 300, 1300, 1),
    ("megabyte", ["-c", "1", "--kind", "blob", "--size", "1048576"], 4, 14, 1048576),
]
TARGETS = ("http-floor", "toolcrib", "toolcrib-stateless")
MOST_ROUNDS = 2

QUIET = "[history]\nenabled = false\n[metrics]\nenabled = {metrics}\n"
# Small calls with other settings than the usual ones: what is put before the config of `toolcrib`, and what after it.
SETTINGS = {
    "off": ("", QUIET.replace("{metrics}", "false")),
    "on": (
        'audit = "{dir}/audit.jsonl"\n',
        QUIET.replace("{metrics}", "true")
        + '[policy]\ndeny = ["*.crash", "git.push*", "*.fill*"]\nquota = { calls = 1000000, per = "1s" }\n'
        + '[servers.s0.tools]\ndeny = ["whoami"]\n',
    ),
}


def instructions(bench):
    if not shutil.which("valgrind"):
        bench.log("instructions: left out, valgrind is not installed")
        return
    for key in TARGETS:
        target = bench.target(key)
        if target is None:
            continue
        counted = {scenario[0]: per_unit(bench, target, scenario) for scenario in SCENARIOS}
        if key == "toolcrib":
            for name, (before, after) in SETTINGS.items():
                counted[name] = per_unit(bench, with_settings(target, before, after), SCENARIOS[0])
        for name, values in counted.items():
            bench.log(f"{key}: instructions, {name}: {values}")
        bench.put(key, "instructions", counted)


def with_settings(target, before, after):
    """The target with text put before and after its config."""
    config = target["files"]["toolcrib.toml"]
    return {**target, "files": {"toolcrib.toml": before + config + after}}


def per_unit(bench, target, scenario):
    """Instructions per call or per byte of a scenario, once per round."""
    _, options, short, long, unit = scenario
    values = []
    for _ in range(min(bench.args.rounds, MOST_ROUNDS)):
        less, more = count(bench, target, options, short), count(bench, target, options, long)
        if less and more:
            values.append((more - less) / (long - short) / unit)
    return values


def count(bench, target, options, calls):
    """Instructions of one whole life of the gateway with this many calls, or None."""
    instance = bench.instance(target, "one")
    # One file per process: a forked child must not write over its parent's counts.
    counts = f"--callgrind-out-file={instance.dir}/callgrind.%p"
    instance.prefix = ["valgrind", "--tool=callgrind", counts]
    if not instance.start():
        instance.stop()
        return None
    pid = instance.process.pid
    result = instance.load("call", [*options, "-n", str(calls), "--warmup", "0", "--timeout-s", "120"], 300)
    # The counts are written at the end of a gentle stop, which takes its time under callgrind.
    instance.stop(patience=60)
    if result.get("ok") != calls:
        instance.log(f"under callgrind: {result}")
        return None
    return read_total(instance.dir / f"callgrind.{pid}", instance)


def read_total(path, instance):
    try:
        found = re.search(r"^(?:totals|summary): (\d+)", path.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if not found:
        instance.log("callgrind wrote no counts")
        return None
    return int(found[1])
