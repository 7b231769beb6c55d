"""The cells of `scripts/first-contact`, which describes the options and installs the packages."""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
Target = dict[str, Any]

# A server that a client lists within this time when it is connected directly must be in its first list of the gateway.
DIRECT = 6.0
# The longest wait for a first list. No client has a longer time limit by default, but some have none.
PATIENCE = 60.0


@dataclass
class Client:
    """A published client: its package, and what follows its name in the request to pip or npm."""

    title: str
    registry: str
    package: str
    suffix: str = ""
    # Of agents, their tool for shell commands. Agents take part as programs, libraries with `client.py` or `client.mjs`.
    shell: str = ""


CLIENTS = {
    "python-2": Client("Python SDK 2.x", "pip", "mcp", ">=2,<3"),
    "python-1": Client("Python SDK 1.x", "pip", "mcp", "<2"),
    "langchain": Client("LangChain adapters", "pip", "langchain-mcp-adapters"),
    "openai-agents": Client("OpenAI Agents, Python", "pip", "openai-agents"),
    "pydantic-ai": Client("Pydantic AI", "pip", "pydantic-ai-slim", "[mcp]"),
    "strands": Client("Strands Agents", "pip", "strands-agents"),
    "typescript-1": Client("TypeScript SDK v1", "npm", "@modelcontextprotocol/sdk", "@1"),
    "typescript-2": Client("TypeScript SDK v2", "npm", "@modelcontextprotocol/client", "@2"),
    "ai-sdk": Client("Vercel AI SDK", "npm", "@ai-sdk/mcp"),
    "openai-agents-js": Client("OpenAI Agents, JavaScript", "npm", "@openai/agents", " zod"),
    "claude": Client("Claude Code", "npm", "@anthropic-ai/claude-code", "@latest", shell="Bash"),
    "codex": Client("Codex", "npm", "@openai/codex", "@latest", shell="exec_command"),
}
# Variables without which the package managers of this machine may not reach their registries.
REGISTRY = re.compile(r"NODE_EXTRA_CA_CERTS|SSL_CERT_(FILE|DIR)|(npm_config|UV|PIP)_\w+|(https?|no|all)_proxy", re.IGNORECASE)


def servers(cell: Path, cold: bool) -> dict[str, Target]:
    """Returns the servers of a cell. The cold package caches are those of the cell's empty home."""
    env = {name: value for name, value in os.environ.items() if REGISTRY.fullmatch(name)}
    if not cold:
        env |= {"npm_config_cache": str(folder("warm/npm")), "UV_CACHE_DIR": str(folder("warm/uv"))}
    start = ["python3", str(HERE.parent / "first_start.py"), str(cell)]
    commands = {
        "everything": ["npx", "-y", "@modelcontextprotocol/server-everything"],
        "time": ["uvx", "mcp-server-time"],
        # The folder tells when the servers were started.
        "failing": ["sh", "-c", f"mkdir -p '{cell}/began'; exit 1"],
        "hanging": [*start, "hanging", "hang"],
        "slow": [*start, "slow", "5"],
    }
    return {name: {"command": argv[0], "args": argv[1:], "env": env} for name, argv in commands.items()}


def folder(name: str) -> Path:
    """Returns where a client is installed. Agents are where scripts/real-clients has them."""
    return Path(args.cache, "clients" if name in CLIENTS and CLIENTS[name].shell else f"first-contact/{name}")


def toml(table: str, targets: dict[str, Target]) -> str:
    def value(of: Any) -> str:
        # Strings and arrays of strings are written as in JSON.
        return "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in of.items()) + "}" if isinstance(of, dict) else json.dumps(of)

    entries = {name: "".join(f"{key} = {value(of)}\n" for key, of in target.items()) for name, target in targets.items()}
    return "".join(f"[{table}.{name}]\n{entry}\n" for name, entry in entries.items())


@contextlib.contextmanager
def new_home(name: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A new home and the environment that leads there. In the end, every process that has it in its environment is killed."""
    cell = args.work / "cells" / name
    names = {
        "HOME": "user", "XDG_CONFIG_HOME": "user/.config", "XDG_CACHE_HOME": "user/.cache", "XDG_DATA_HOME": "user/.local/share",
        "XDG_STATE_HOME": "user/.local/state", "XDG_RUNTIME_DIR": "run", "TMPDIR": "tmp", "TOOLCRIB_HOME": "toolcrib",
        "CLAUDE_CONFIG_DIR": "claude", "CODEX_HOME": "codex",
    }  # fmt: skip
    env = {variable: str(cell / path) for variable, path in names.items()}
    for path in [*env.values(), cell / "project"]:
        os.makedirs(path, mode=0o700)
    env["PATH"] = f"{args.cache}/clients/node_modules/.bin:{folder('uv')}/bin:{os.environ['PATH']}"
    try:
        yield cell, env
    finally:
        mark = f"{cell}/".encode()
        while left := [process for process in Path("/proc").glob("[0-9]*") if belongs(process, mark)]:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
            time.sleep(0.05)
        shutil.rmtree(cell)


def belongs(process: Path, mark: bytes) -> bool:
    # The process may have ended, or belong to another user.
    with contextlib.suppress(OSError):
        return mark in (process / "environ").read_bytes()
    return False


def until(done: Callable[[], Any], seconds: float) -> Any:
    """Waits until `done` returns something, and returns that."""
    end = time.monotonic() + seconds
    while not (answer := done()) and time.monotonic() < end:
        time.sleep(0.05)
    return answer


def start(argv: list[str], env: dict[str, str], cell: Path, name: str) -> subprocess.Popen[bytes]:
    """Starts a process without input, with its output in files."""
    with open(cell / f"{name}.out", "w") as out, open(cell / f"{name}.err", "w") as err:
        return subprocess.Popen(argv, env=env, cwd=cell / "project", stdin=subprocess.DEVNULL, stdout=out, stderr=err)


def said(file: Path, pattern: str) -> str:
    """Waits until a line of a file matches, and returns the pattern's group."""
    if not (found := until(lambda: re.search(pattern, file.read_text(), re.MULTILINE), 30)):
        raise SystemExit(f"no /{pattern}/ within 30 s:\n{file.read_text()}{file.with_suffix('.err').read_text()}")
    return str(found[1])


def lines(file: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of JSON in a file that is still being written."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")]


@dataclass
class Seen:
    """The first list of a target and when it came. Agents can have it in time for their first request to the model."""

    tools: set[str]
    seconds: float
    error: str = ""
    first_request: bool = False


Targets = Callable[[], dict[str, Target]]
Asked = tuple[dict[str, Seen], int | None]


def ask_library(name: str, cell: Path, env: dict[str, str], targets: Targets, direct: bool) -> Asked:
    argv = [str(folder(name) / "bin/python"), str(HERE / "client.py"), name]
    if CLIENTS[name].registry == "npm":
        # JavaScript looks for packages beside the file.
        argv = ["node", str(shutil.copy(HERE / "client.mjs", folder(name))), name]
    os.mkfifo(cell / "targets")
    process, out = start([*argv, str(cell / "targets")], env, cell, "client"), cell / "client.out"
    # It has loaded its library before the gateway is started, which gains no time by that.
    said(out, "(ready)")
    (cell / "targets").write_text(json.dumps(targets()))
    if direct:
        time.sleep(DIRECT)
    else:
        until(lambda: lines(out) or process.poll() is not None, PATIENCE)
        # An error while it disconnects counts, too.
        until(lambda: process.poll() is not None, 10)
    seen: dict[str, Seen] = {}
    for line in lines(out):
        one = seen.setdefault(line["target"], Seen(set(line.get("tools", [])), line["seconds"]))
        one.error = one.error or line.get("error", "")
    return seen, process.poll()


def ask_agent(name: str, cell: Path, env: dict[str, str], targets: Targets, direct: bool) -> Asked:
    """Lets the agent wait in its shell, while the fake model notes the tools that it is offered with each request.

    Agents connect in the background: they offer the tools of a target from some request on. What counts of the gateway's tools is
    what they offered then and was in the first list that the gateway answered with.
    """
    model = [sys.executable, "-u", str(HERE.parent / "model.py"), str(cell / "model.log"), "wait", CLIENTS[name].shell, "300"]
    start(model, env, cell, "model")
    url = "http://127.0.0.1:" + said(cell / "model.out", r"port (\d+)")
    given = targets()
    if not direct:
        tee = [sys.executable, str(HERE / "tee.py"), str(cell / "tee.log")]
        if "url" in given["crib"]:
            start([*tee, given["crib"]["url"]], env, cell, "tee")
            given["crib"]["url"] = said(cell / "tee.out", r"(http\S+)")
        else:
            command = [*tee, given["crib"]["command"], *given["crib"]["args"]]
            given["crib"] |= {"command": command[0], "args": command[1:]}
    if name == "codex":
        provider = {"pretend": {"name": "pretend", "base_url": f"{url}/v1", "wire_api": "responses"}}
        text = 'model = "none"\nmodel_provider = "pretend"\n' + toml("model_providers", provider) + toml("mcp_servers", given)
        (cell / "codex/config.toml").write_text(text)
        argv = ["codex", "exec", "--skip-git-repo-check", "--sandbox", "read-only", "wait"]
    else:
        entries = {entry: {"type": "http", **target} if "url" in target else target for entry, target in given.items()}
        (cell / "claude/.claude.json").write_text(json.dumps({"mcpServers": entries}))
        # Without its tool search, the request names every tool.
        env |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "ENABLE_TOOL_SEARCH": "false"}
        env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        argv = ["claude", "-p", "wait", "--allowedTools", "Bash"]
    process, launched = start(argv, env, cell, "client"), time.time()

    def look() -> tuple[dict[str, Seen], float]:
        """Returns what was offered, and how long ago that was, both counted from the start of the servers."""
        began = (cell / "began").stat().st_mtime if (cell / "began").exists() else launched
        seen: dict[str, Seen] = {}
        requests = [line for line in lines(cell / "model.log") if "tools" in line]
        for line in requests:
            for target, tools in by_target(line["tools"], given).items():
                seen.setdefault(target, Seen(tools, line["at"] - began, first_request=line is requests[0]))
        lists = [] if direct else lines(cell / "tee.log")
        if not direct and "crib" in seen:
            first = {portable(tool) for one in lists[:1] for tool in one["tools"]}
            seen["crib"] = Seen(seen["crib"].tools & first, seen["crib"].seconds, first_request=seen["crib"].first_request)
        return seen, requests[-1]["at"] - began if requests else 0

    until(lambda: (look()[1] > DIRECT if direct else look()[0]) or process.poll() is not None, PATIENCE)
    return look()[0], process.poll()


def portable(tool: str) -> str:
    """Returns a tool's name as the agents write it for models."""
    return re.sub(r"\W", "_", tool)


def by_target(offered: list[str], targets: dict[str, Target]) -> dict[str, set[str]]:
    """Sorts an agent's names of tools, which are `mcp__TARGET__TOOL` or `mcp__TARGETTOOL`."""
    found: dict[str, set[str]] = {}
    for name in offered:
        if parts := re.fullmatch(f"mcp__({'|'.join(targets)})(?:__)?(.+)", name):
            found.setdefault(parts[1], set()).add(portable(parts[2]))
    return found


def ask(name: str, cold: bool, transport: str) -> dict[str, Seen]:
    """Connects a client for the first time in a new home: `direct` to every server, otherwise only to the gateway."""
    with new_home(f"{name}-{transport}-{'cold' if cold else 'warm'}") as (cell, env):
        (cell / "toolcrib/config.toml").write_text(toml("servers", servers(cell, cold)))

        def targets() -> dict[str, Target]:
            if transport == "direct":
                return servers(cell, cold)
            if transport == "stdio":
                home = {key: env[key] for key in ("TOOLCRIB_HOME", "XDG_RUNTIME_DIR")}
                return {"crib": {"command": args.program, "args": ["stdio"], "env": home}}
            start([args.program, "serve", "--listen", "127.0.0.1:0"], env, cell, "serve")
            return {"crib": {"url": said(cell / "serve.err", r"^listening on (http\S+)")}}

        seen, exit_code = (ask_agent if CLIENTS[name].shell else ask_library)(name, cell, env, targets, transport == "direct")
        if transport != "direct" and "crib" not in seen:
            said_last = (cell / "client.err").read_text().strip().splitlines()[-1:]
            error = "no list" if exit_code is None else f"exit {exit_code}: {''.join(said_last)}"
            seen["crib"] = Seen(set(), PATIENCE, error)
        return seen


def row(name: str, cold: bool, transport: str, direct: dict[str, Seen]) -> tuple[str, str]:
    """Runs a cell, and returns the verdict and a line of the table."""
    expected = {server: one for server, one in direct.items() if one.tools and one.seconds <= DIRECT}
    wanted = {server: {f"{server}__{tool}" for tool in one.tools} for server, one in expected.items()}
    crib = (seen := ask(name, cold, transport))["crib"]
    absent = [server for server, tools in wanted.items() if tools - crib.tools]
    verdict = "✗" if absent or crib.error else "✓" if wanted else "–"
    found, all_tools = sum(len(tools & crib.tools) for tools in wanted.values()), sum(map(len, wanted.values()))
    result = f"{found} of {all_tools} in {crib.seconds:.1f} s" + first_request(name, seen)
    result += f"; without {', '.join(absent)}" if absent else ""
    result += f"; {' '.join(crib.error.split())[:120]}" if crib.error else ""
    baseline = ", ".join(f"{server} {one.seconds:.1f} s" for server, one in sorted(expected.items(), key=lambda item: item[1].seconds))
    baseline = (baseline or "nothing") + first_request(name, direct)
    columns = [verdict, client_version(name), transport, "cold" if cold else "warm", result, baseline]
    return verdict, f"| {' | '.join(column.replace('|', '/') for column in columns)} |"


def first_request(name: str, seen: dict[str, Seen]) -> str:
    count = sum(len(one.tools) for one in seen.values() if one.first_request)
    return f", {count} in the first request" if CLIENTS[name].shell else ""


def prime() -> None:
    """Fills the warm package caches, as an earlier use of the servers without toolcrib does."""
    with new_home("prime") as (cell, env):
        for target in list(servers(cell, False).values())[:2]:
            start([target["command"], *target["args"]], env | target["env"], cell, "prime").wait(300)


def client_version(name: str) -> str:
    client, code = CLIENTS[name], "import sys, importlib.metadata as packages; print(packages.version(sys.argv[1]))"
    if client.registry == "npm":
        version = json.loads((folder(name) / "node_modules" / client.package / "package.json").read_text())["version"]
    else:
        version = subprocess.check_output([folder(name) / "bin/python", "-c", code, client.package], text=True).strip()
    return f"{client.title} {version}"


def head() -> str:
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, text=True).strip()
    program = subprocess.check_output([args.program, "--version"], text=True).strip()
    return f"""# First contact

<!-- generated by `scripts/first-contact --publish` -->

What published clients see on their first connection to a gateway that was never used before: {time.strftime("%Y-%m-%d")}, {program},
commit {commit}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the beginning. Every line began with an empty home and a
configuration of five servers: `everything` is `npx -y @modelcontextprotocol/server-everything`, `time` is `uvx mcp-server-time`,
`slow` needs 5 s to start, one fails and one hangs.

✓: with the client's own time limits there was no time-out and no error, and its first list named every tool of each server that the
same client listed within {DIRECT:.0f} s when it was connected to all five without toolcrib. –: no time-out and no error, but without
toolcrib it listed none in that time. Package caches are warm if the servers were used before without toolcrib, and cold if they are
empty. Agents list in the background: their times are counted from the start of the servers until they offer the tools to the model, and
they send their first request with the tools that they have by then. Tools that an agent offers only since a later list do not count.

| | client | transport | caches | with toolcrib | without |
|---|---|---|---|---|---|
"""


def run() -> int:
    rows: list[tuple[str, str]] = []
    text = head()
    print(text, end="", flush=True)
    for cold in args.caches:
        if not cold:
            prime()
        for name in args.client:
            direct = ask(name, cold, "direct")
            for transport in args.transport:
                rows.append(row(name, cold, transport, direct))
                print(rows[-1][1], flush=True)
    verdicts = [verdict for verdict, _ in rows]
    print("\n" + ", ".join(f"{verdicts.count(sign)} {sign}" for sign in "✓✗–"))
    if args.publish:
        (ROOT / "docs/first-contact.md").write_text(text + "".join(f"{line}\n" for _, line in rows))
    # A machine without its registries has nothing to compare with, which proves nothing.
    return 0 if "✓" in verdicts and "✗" not in verdicts else 1


def packages() -> int:
    """Prints what `scripts/first-contact` installs: FUNCTION FOLDER COMMAND PACKAGES."""
    print("npm clients .bin/node node@24\npip first-contact/uv uvx uv")
    for name in args.client:
        client = CLIENTS[name]
        # Of a Python library, the program `mcp` of the SDK that it brings tells that it is installed.
        command = "mcp" if client.registry == "pip" else f".bin/{name}" if client.shell else client.package
        print(client.registry, folder(name).relative_to(args.cache), command, client.package + client.suffix)
    return 0


parser = argparse.ArgumentParser(prog="scripts/first-contact", description="Shows what clients see on their first connection.")
parser.add_argument("--client", action="append", choices=list(CLIENTS), help="only this client; may be repeated")
parser.add_argument("--transport", action="append", choices=["stdio", "http"], help="only this transport")
caches = parser.add_mutually_exclusive_group()
caches.add_argument("--warm", dest="caches", action="store_const", const=[False], help="only with filled package caches")
caches.add_argument("--cold", dest="caches", action="store_const", const=[True], help="only with empty package caches")
parser.add_argument("--publish", action="store_true", help="write docs/first-contact.md; needs the whole table")
for hidden in ("--cache", "--work"):
    parser.add_argument(hidden, type=Path, required=True, help=argparse.SUPPRESS)
parser.add_argument("--program", help=argparse.SUPPRESS)
parser.add_argument("--packages", action="store_true", help=argparse.SUPPRESS)
args = parser.parse_args()
if args.publish and (args.client or args.transport or args.caches):
    parser.error("--publish needs the whole table: leave out --client, --transport, --warm and --cold")
args.client, args.transport = args.client or list(CLIENTS), args.transport or ["stdio", "http"]
args.caches = args.caches or [False, True]
sys.exit(packages() if args.packages else run())
