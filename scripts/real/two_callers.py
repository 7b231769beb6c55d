"""Makes the same requests as two callers, compares the results, stops the gateway and reads the audit file.

two_callers.py URL HOME PID VERSION PAGE: writes a report to PAGE, and exits 1 if a check fails.
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

URL, HOME, PID, VERSION, PAGE = sys.argv[1:]
STATELESS = "2026-07-28"
wrong = []


def hold(what, holds):
    print(("✓ " if holds else "✗ ") + what)
    if not holds:
        wrong.append(what)


def ask(caller, method, params=None):
    """Returns the result and the error of one request."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientInfo": {"name": "two-callers", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": meta}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": STATELESS,
        "Mcp-Method": method,
        "Authorization": f"Bearer {caller}-token",
    }
    name = (params or {}).get("name") or (params or {}).get("uri")
    if name:
        headers["Mcp-Name"] = name
    request = urllib.request.Request(URL, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        text = error.read().decode()
    answer = json.loads(text)
    return answer.get("result"), answer.get("error")


def listed(caller, method, member, key):
    result, error = ask(caller, method)
    if error:
        raise SystemExit(f"{caller} {method}: {error}")
    return [item[key] for item in result[member]]


def told(result, error):
    """Summarizes a response."""
    if error:
        return f"{error['code']}: {error['message']}"
    blocks = result.get("content") or result.get("contents") or result.get("messages") or []
    first = blocks[0] if blocks else {}
    text = first.get("text") or first.get("content", {}).get("text") or json.dumps(first)
    text = " ".join(text.split())
    return text if len(text) <= 70 else text[:69] + "…"


LISTS = [
    ("tools/list", "tools", "name"),
    ("prompts/list", "prompts", "name"),
    ("resources/list", "resources", "uri"),
]
seen = {who: {method: listed(who, method, member, key) for method, member, key in LISTS} for who in ("reader", "builder")}

CALLS = [
    ("tools/call", {"name": "everything__echo", "arguments": {"message": "hello"}}),
    ("tools/call", {"name": "everything__get-sum", "arguments": {"a": 2, "b": 3}}),
    ("tools/call", {"name": "everything__get-tiny-image", "arguments": {}}),
    ("tools/call", {"name": "everything__toggle-simulated-logging", "arguments": {}}),
    ("tools/call", {"name": "everything__get-env", "arguments": {}}),
    ("tools/call", {"name": "everything__Echo", "arguments": {"message": "hello"}}),
    ("prompts/get", {"name": "everything__simple-prompt"}),
]
answers = {who: [ask(who, method, params) for method, params in CALLS] for who in ("reader", "builder")}

os.kill(int(PID), signal.SIGTERM)
for _ in range(600):
    try:
        os.kill(int(PID), 0)
        if Path(f"/proc/{PID}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
    except (ProcessLookupError, FileNotFoundError):
        break
    time.sleep(0.05)
text = (Path(HOME) / "audit.jsonl").read_text()
lines = [json.loads(line) for line in text.splitlines()]

tools = {who: set(seen[who]["tools/list"]) for who in seen}
hold("reader sees fewer tools than builder", tools["reader"] < tools["builder"])
hold("no caller sees `get-env`", not any("everything__get-env" in names for names in tools.values()))
hold("reader sees no prompt, builder does", not seen["reader"]["prompts/list"] and seen["builder"]["prompts/list"])
outcomes = {who: [("ok" if error is None else error["code"]) for _, error in answers[who]] for who in answers}
hold("reader may call echo and get-sum, nothing else", outcomes["reader"] == ["ok", "ok", -31010, -31010, -31010, -32602, -31010])
hold("builder may call everything except `get-env`", outcomes["builder"] == ["ok", "ok", "ok", "ok", -31010, -32602, "ok"])
hold("the audit has one line per call", len(lines) == 2 * len(CALLS))
by_caller = {who: [line for line in lines if line["caller"] == who] for who in answers}
names = {"ok": "ok", -31010: "denied", -32602: "unknown"}
hold(
    "the audit has the outcome that the caller received",
    all([names[code] for code in outcomes[who]] == [line["outcome"] for line in by_caller[who]] for who in outcomes),
)
refused = [line for line in lines if line["outcome"] == "denied"]
hold("every refusal names its rule, file and line", all(line["rule"] and line["file"] and line["line"] for line in refused))
hold("the audit contains no content", "hello" not in text and "token" not in text)

config = (Path(HOME) / "config.toml").read_text()
page = [
    "# Two callers",
    "",
    f"Generated by `scripts/two-callers` with `@modelcontextprotocol/server-everything` {VERSION} behind a gateway with this config:",
    "",
    "```toml",
    *["args = [\"…/server-everything/dist/index.js\", \"stdio\"]" if line.startswith("args") else line for line in config.splitlines()],
    "```",
    "",
    "## Lists",
    "",
    "| | `reader` | `builder` |",
    "|---|---|---|",
]
short = lambda name: name.removeprefix("everything__")
for method, _, _ in LISTS:
    shown = [", ".join(f"`{short(name)}`" for name in seen[who][method]) or "nothing" for who in ("reader", "builder")]
    page.append(f"| `{method}` | {shown[0]} | {shown[1]} |")
page += ["", "## Calls", "", "| request | `reader` | `builder` |", "|---|---|---|"]
clean = lambda said: said.replace("|", "\\|")
for at, (method, params) in enumerate(CALLS):
    asked = f"`{method}` `{params['name']}`"
    page.append(f"| {asked} | {clean(told(*answers['reader'][at]))} | {clean(told(*answers['builder'][at]))} |")
page += ["", "## Audit file", "", "```json"]
page += [line.replace(HOME, "…") for line in text.splitlines()]
page += ["```", ""]
if not wrong:
    Path(PAGE).write_text("\n".join(page))
sys.exit(1 if wrong else 0)
