"""Cost of a call in what the call does not touch: declared servers, tools, idle sessions and rules.

The gateway runs under callgrind, which writes its counts after a short and after a long run of calls; the difference
leaves out everything else, however much was declared or opened before.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass

SHORT, LONG = 300, 1300
MOST = 1.03
SERVE = ["{env:TOOLCRIB_BIN}", "serve", "--config", "{dir}/toolcrib.toml", "--listen", "127.0.0.1:{port}"]
CALL = ["-c", "1", "--warmup", "0", "--timeout-s", "120"]


@dataclass(frozen=True)
class Load:
    """What surrounds the call."""

    servers: int = 10
    tools: int = 10
    sessions: int = 1
    rules: int = 0

    def config(self):
        """A config with one server that is called; a card lists the others, so that none of them is started."""
        others = "".join(
            f'[servers.other{number}]\ncommand = "{{bin}}/echo-server"\n'
            f'card = {{ tools = [{{ name = "t{number}", inputSchema = {{ type = "object" }} }}] }}\n'
            for number in range(1, self.servers)
        )
        rules = ", ".join(f'"other{number}.never_{number}*"' for number in range(self.rules))
        called = f'[servers.s0]\ncommand = "{{bin}}/echo-server"\nargs = ["--id", "s0", "--tools", "{self.tools}"]\n'
        limits = f"[limits]\nsessions = {self.sessions + 1000}\nfirst-listing-wait = \"60s\"\n"
        return called + others + f"[policy]\ndeny = [{rules}]\n" + limits


# What grows, as the page names it, and the load with it.
LOADS = {
    "base": Load(),
    "servers": Load(servers=1000),
    "tools": Load(tools=10_000),
    "sessions": Load(sessions=10_000),
    "rules": Load(rules=1000),
}


def flat(bench):
    if not shutil.which("valgrind"):
        bench.log("flat: left out, valgrind is not installed")
        return
    for name, load in LOADS.items():
        counted = per_call(bench, load)
        bench.log(f"flat, {name}: {counted} instructions per call")
        bench.results.setdefault("flat", {})[name] = counted
        bench.save()


def per_call(bench, load):
    """Instructions per call within this load, or None."""
    target = {
        "key": "flat",
        "env": {"TOOLCRIB_HOME": "{dir}/home"},
        "files": {"toolcrib.toml": load.config()},
        "one": {"cmd": SERVE, "url": "http://127.0.0.1:{port}/mcp"},
    }
    instance = bench.instance(target, "one")
    instance.prefix = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={instance.dir}/callgrind.%p"]
    try:
        if not instance.start() or not open_sessions(instance, load.sessions):
            return None
        instance.settle()
        dump(instance)
        less, more = (count(instance, calls) for calls in (SHORT, LONG))
        return (more - less) / (LONG - SHORT) if less and more else None
    finally:
        instance.stop(patience=120)


def open_sessions(instance, wanted):
    """Opens sessions that stay open without a connection, besides the one that each run of calls opens."""
    if wanted <= 1:
        return True
    opened = instance.load("sessions", ["-k", str(wanted - 1), "--hold-s", "0", "--timeout-s", "120"], 900)
    if opened.get("ok") != wanted - 1:
        instance.log(f"sessions: {opened}")
        return False
    return True


def count(instance, calls):
    """Instructions of one run of calls, or None."""
    result = instance.load("call", [*CALL, "-n", str(calls)], 600)
    if result.get("ok") != calls:
        instance.log(f"under callgrind: {result}")
        return None
    return dump(instance)


def dump(instance):
    """Instructions since the last dump, or None."""
    pid = instance.process.pid
    before = set(instance.dir.glob(f"callgrind.{pid}.*"))
    subprocess.run(["callgrind_control", "--dump", str(pid)], check=True, capture_output=True, timeout=120)
    written = set(instance.dir.glob(f"callgrind.{pid}.*")) - before
    found = [re.search(r"^totals: (\d+)", path.read_text(), re.MULTILINE) for path in written]
    if len(found) != 1 or not found[0]:
        instance.log(f"callgrind wrote {len(found)} dumps")
        return None
    return int(found[0][1])
