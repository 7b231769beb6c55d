"""A large config: a thousand servers and two hundred scopes in five layers, read and resolved, and explained by `why`.

The library reads five files. The program has three layers of its own and no more (machine, person, project), and that
of the machine is not ours to write: `why` reads the same five files as two, the person's and the project's.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import time

from .instance import run_json

SERVERS, SCOPES, LAYERS = 1000, 200, 5
CPU_MS, WHY_MS = 50, 100
PATIENCE_SECONDS = 120


def layers():
    """Five texts, the farthest first: one declares everything, each of the others changes a part of it."""
    kinds = ['host = "h{n}"', 'user = "u{n}*"', 'env = {{ V{n} = "x" }}', 'project = "p{n}"', 'network = {{ cidr = "10.{n}.0.0/16" }}']
    scope = lambda n: f'[scopes.s{n}]\nmatch = {{ os = "linux", {kinds[n % 5].format(n=n)} }}\ntags = ["t{n}", "u{n}"]\n'
    server = lambda n: (
        f'[servers.x{n}]\ncommand = "npx"\nargs = ["-y", "@some/server-{n}", "--root", "/srv/{n}"]\n'
        f'env = {{ TOKEN = "${{env:TOKEN_{n}}}", MODE = "m{n}" }}\nwhen = ["t{n % SCOPES}", "linux"]\n'
        f'lifecycle = {{ keep-alive = "10m", restarts = {{ at-most = 3, within = "1m" }} }}\n'
        f'[servers.x{n}.tools]\nallow = ["get_*", "list_*"]\ndeny = ["get_secret*"]\n'
    )
    texts = ["".join(map(scope, range(SCOPES))) + "".join(map(server, range(SERVERS)))]
    for layer in range(1, LAYERS):
        patch = lambda n: (
            f'[servers.x{n}]\nenabled = {"true" if n % 7 else "false"}\nenv = {{ LAYER = "{layer}" }}\n'
            f'"+args" = ["--layer", "{layer}"]\n[servers.x{n}.limits]\ncall-timeout = "{layer}m"\n'
        )
        texts.append("".join(patch(n) for n in range(layer, SERVERS, LAYERS - 1)))
    return texts


def resolve(bench):
    """Writes the layers, measures both and keeps what came of it."""
    folder = bench.paths["scratch"] / f"resolve-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, text in enumerate(layers()):
        files.append(folder / f"layer{number}.toml")
        files[-1].write_text(text)
        files[-1].chmod(0o600)
    rounds = bench.args.rounds * 3
    command = [bench.paths["bin"] / "resolve-load", "--rounds", rounds, *files]
    measured = run_json([str(part) for part in command], PATIENCE_SECONDS, folder)
    wanted = {"servers": SERVERS, "scopes": SCOPES, "problems": 0}
    came_to = measured.get("outcome", {})
    if any(came_to.get(key) != value for key, value in wanted.items()):
        measured = {"failed": f"not what was written: {measured}"}
    bench.results["resolve"] = {"library": measured, "why": why(folder, rounds)}
    for name, result in bench.results["resolve"].items():
        if result.get("failed"):
            bench.log(f"resolve, {name}: {result['failed']}")
    shutil.rmtree(folder)
    bench.save()


def why(folder, rounds):
    """How long `toolcrib why` takes as a cold process, in milliseconds each."""
    texts = layers()
    home, project = folder / "home", folder / "project"
    (project / ".git").mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    for file, text in ((home / "config.toml", texts[0]), (project / ".toolcrib.toml", "".join(texts[1:]))):
        file.write_text(text)
        file.chmod(0o600)
    options = {"cwd": project, "env": {**os.environ, "TOOLCRIB_HOME": str(home)}, "capture_output": True, "text": True}
    program = os.environ["TOOLCRIB_BIN"]
    allowed = subprocess.run([program, "allow", "--yes"], **options)
    if allowed.returncode:
        return {"failed": allowed.stderr}
    wall, cpu = [], []
    for _ in range(rounds):
        started, before = time.monotonic(), children_cpu()
        done = subprocess.run([program, "why", "x7", "--json"], **options)
        wall.append((time.monotonic() - started) * 1000)
        cpu.append((children_cpu() - before) * 1000)
        said = json.loads(done.stdout or "{}")
        keys = {value["key"]: value for value in said.get("values", [])}
        if len(said.get("scopes", [])) != SCOPES or not keys.get("limits.call-timeout", {}).get("file", "").endswith(".toolcrib.toml"):
            return {"failed": f"exit {done.returncode}: {done.stdout[:200]} {done.stderr[:200]}"}
    return {"wall_ms": wall, "cpu_ms": cpu}


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figures(results):
    """The CPU of reading and resolving together, and the wall time of `why`, in milliseconds; what failed is empty."""
    found = results.get("resolve", {})
    rounds = found.get("library", {}).get("rounds", [])
    return {
        "read": [each["read_ms"] for each in rounds],
        "resolve": [each["resolve_ms"] for each in rounds],
        "both": [each["read_ms"] + each["resolve_ms"] for each in rounds],
        "why": found.get("why", {}).get("wall_ms", []),
        "why_cpu": found.get("why", {}).get("cpu_ms", []),
    }


def broken(results):
    """What was not kept, in words."""
    measured = figures(results)
    bounds = (("both", CPU_MS, "ms of CPU to read and resolve"), ("why", WHY_MS, "ms for `why`"))
    missing = [f"nothing was measured: {words}" for name, _, words in bounds if not measured[name]]
    medians = [(statistics.median(measured[name]), most, words) for name, most, words in bounds if measured[name]]
    return missing + [f"{value:.1f} {words}, at most {most}" for value, most, words in medians if value > most]
