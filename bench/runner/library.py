"""The library alone: runs `library-load`, which interleaves its own rounds with a raw pipe and the official SDK.

It runs twice. Free to use every core, waking an idle one costs several times what the call itself costs, for
the raw pipe as for the library, and how often that happens is up to the scheduler. Held on one core together
with its server, what is left is the work of the client. Instructions of a call, with and without a held lease,
are counted by callgrind: the difference of a short and a long run leaves out starting and stopping.
"""

import os
import re
import shutil

from .instance import run_json

PATIENCE_SECONDS = 600
SHORT, LONG = 500, 2500


def library(bench):
    program = bench.paths["bin"] / "library-load"
    if not program.exists():
        bench.log("library: left out, library-load is not built")
        return
    core = max(os.sched_getaffinity(0))
    results = {
        "free": load(bench, program),
        "one_core": load(bench, program, lambda: os.sched_setaffinity(0, {core})),
    }
    for placement, result in results.items():
        if result.get("failed"):
            bench.log(f"library, {placement}: {result['failed']}")
    if shutil.which("valgrind"):
        results["instructions"] = {kind: per_call(bench, program, kind) for kind in ("crib", "lease")}
    bench.results["library"] = results
    bench.save()


def per_call(bench, program, kind):
    """Instructions per sequential call, or None."""
    less, more = (count(bench, program, kind, calls) for calls in (SHORT, LONG))
    return (more - less) / (LONG - SHORT) if less and more else None


def count(bench, program, kind, calls):
    """Instructions of one whole run, or None."""
    out = bench.paths["scratch"] / f"library-{kind}-{calls}.callgrind"
    command = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", program]
    command += ["--echo-server", bench.paths["bin"] / "echo-server", "--only", kind, "--echo-calls", calls]
    result = run_json([str(part) for part in command], PATIENCE_SECONDS, bench.paths["scratch"])
    found = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.MULTILINE) if out.exists() else None
    if result.get("failed") or not found:
        bench.log(f"library, {kind} under callgrind: {result}")
        return None
    return int(found[1])


def load(bench, program, before=None):
    rounds, slow, echo = (3, 1600, 5000) if bench.args.quick else (bench.args.rounds + 2, 6400, 20000)
    command = [program, "--echo-server", bench.paths["bin"] / "echo-server", "--rounds", rounds]
    command += ["--slow-calls", slow, "--echo-calls", echo]
    return run_json([str(part) for part in command], PATIENCE_SECONDS, bench.paths["scratch"], before=before)
