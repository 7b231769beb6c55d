"""The library alone: runs `library-load`, which interleaves its own rounds with a raw pipe.

It runs twice. Free to use every core, waking an idle one costs several times what the call itself costs, for
the raw pipe as for the library, and how often that happens is up to the scheduler. Held on one core together
with its server, what is left is the work of the client.
"""

import os

from .instance import run_json

PATIENCE_SECONDS = 600


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
    bench.results["library"] = results
    bench.save()


def load(bench, program, before=None):
    rounds, slow, echo = (3, 1600, 5000) if bench.args.quick else (bench.args.rounds + 2, 6400, 20000)
    command = [program, "--echo-server", bench.paths["bin"] / "echo-server", "--rounds", rounds]
    command += ["--slow-calls", slow, "--echo-calls", echo]
    return run_json([str(part) for part in command], PATIENCE_SECONDS, bench.paths["scratch"], before=before)
