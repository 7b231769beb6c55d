"""Measures the time from the start of `toolcrib stdio` to its first answer: standalone, with the start of a gateway, and
attached to a running one. Exits 1 if the start of a gateway costs more than 100 ms: first_answer.py PROGRAM."""

import os
import statistics
import subprocess
import sys
import time

INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    b'"clientInfo":{"name":"timer","version":"1"}}}\n'
)
ROUNDS = 20
MAX_COST = 0.1


def first_answer(program: str, auto_start: str) -> float:
    """Returns the seconds until `initialize` is answered."""
    started = time.monotonic()
    env = {**os.environ, "TOOLCRIB_AUTO_START": auto_start}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([program, "stdio"], env=env, **pipes) as process:
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        assert b'"result"' in process.stdout.readline()
        return time.monotonic() - started


def stop(program: str) -> None:
    subprocess.run([program, "stop-gateway"], check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    program = sys.argv[1]
    stop(program)
    alone = [first_answer(program, "false") for _ in range(ROUNDS)]
    starting = []
    for _ in range(ROUNDS):
        starting.append(first_answer(program, "true"))
        stop(program)
    first_answer(program, "true")
    attached = [first_answer(program, "true") for _ in range(ROUNDS)]
    stop(program)
    rows = {"standalone": alone, "starting a gateway": starting, "attached": attached}
    medians = {name: statistics.median(times) for name, times in rows.items()}
    text = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in medians.items())
    cost = medians["starting a gateway"] - medians["standalone"]
    mark = "✓" if cost < MAX_COST else "✗"
    print(f"{mark} time to the first answer (median of {ROUNDS}): {text}")
    sys.exit(cost >= MAX_COST)


main()
