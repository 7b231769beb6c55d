"""The command line: builds, measures, writes the page."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from . import flat, instructions, library, phases, resolve
from .bench import Bench
from .report import merged, page

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent
RESULTS = HERE / "results"
PHASES = "one,soak,sessions,ten,startup,probe,instructions,flat,library,resolve"
QUICK = {"phases": "one,ten,instructions,library,resolve", "rounds": 2, "scale": 0.2, "only": "toolcrib"}


def parse(words):
    parser = argparse.ArgumentParser(prog="bench/run", description="Runs MCP gateways side by side.")
    parser.add_argument("--quick", action="store_true", help="a short look; does not touch the page")
    parser.add_argument("--phases", help=f"comma separated, of {PHASES}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--startup-rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, help="multiplies calls and seconds per scenario")
    parser.add_argument("--only", help="comma separated keys of targets (the floors stay)")
    parser.add_argument("--skip", help="comma separated keys of targets")
    parser.add_argument("--soak-calls", type=int, default=100_000)
    parser.add_argument("--soak-seconds", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--config", default=HERE / "targets.toml", help="the targets")
    parser.add_argument("--peers", default=HERE / "peers", help="where other gateways are installed")
    parser.add_argument("--out", help="where results go")
    parser.add_argument("--page", help="where the page goes")
    parser.add_argument("--no-build", action="store_true", help="measure what is already built")
    parser.add_argument(
        "--table",
        nargs="*",
        metavar="RESULTS",
        help="only write the page again, from these results (later files fill in earlier ones)",
    )
    args = parser.parse_args(words)
    usual = QUICK if args.quick else {"phases": PHASES, "rounds": 5, "scale": 1.0, "only": None}
    for name, value in usual.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    # A quick look must not replace the numbers of a full run.
    args.out = Path(args.out or RESULTS / ("quick.json" if args.quick else "latest.json"))
    args.page = Path(args.page or (RESULTS / "quick.md" if args.quick else ROOT / "docs/benchmarks.md"))
    unknown = set(args.phases.split(",")) - set(PHASES.split(","))
    if unknown:
        parser.error(f"no such phase: {', '.join(sorted(unknown))}")
    return args


def build():
    """The bench tools and toolcrib. A failure ends the run: an old binary must not pass for the new one."""
    cargo = [shutil.which("cargo") or sys.exit("cargo is needed to build"), "build", "--release", "--quiet"]
    subprocess.run(cargo, cwd=HERE, check=True)
    if "TOOLCRIB_BIN" not in os.environ:
        subprocess.run(cargo, cwd=ROOT, check=True)


def write_page(results, path):
    text = page(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(text)


def measure(args):
    os.environ.setdefault("TOOLCRIB_BIN", str(ROOT / "target/release/toolcrib"))
    paths = {
        "root": ROOT,
        "here": HERE,
        "bin": HERE / "target/release",
        "peers": Path(args.peers).resolve(),
        "scratch": HERE / "scratch",
    }
    paths["scratch"].mkdir(exist_ok=True)
    # So that an interrupted run ends its gateways like one that failed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    bench = Bench(args, paths)
    asked = args.phases.split(",")
    try:
        if {"one", "soak", "sessions"} & set(asked):
            phases.one_server(bench, asked)
        for name, phase in (
            ("ten", phases.ten_servers),
            ("startup", phases.startup),
            ("probe", phases.probe),
            ("instructions", instructions.instructions),
            ("flat", flat.flat),
            ("library", library.library),
            ("resolve", resolve.resolve),
        ):
            if name in asked:
                phase(bench)
    finally:
        bench.close()
    return bench.results


def main(words=None):
    args = parse(words)
    if args.table is not None:
        files = args.table or [args.out]
        write_page(merged([json.loads(Path(file).read_text()) for file in files]), args.page)
        return
    if not args.no_build:
        build()
    write_page(measure(args), args.page)
