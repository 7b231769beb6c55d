"""A fake model with the two APIs that Claude Code and Codex use, so that both work without an account.

model.py LOG [search | TOOL | wait SHELL COUNT]: prints its port and then answers every request the same way. It first calls the
tool whose name ends in `everything__echo`, or in TOOL, if it is offered; when it receives the tool's result, it repeats the result
and stops. With `search`, it calls `find_tools`, `describe_tools` and `call_tool` one after the other instead. With `wait`, it calls
SHELL, the agent's own tool for commands, with `sleep 0.2` COUNT times, which shows how the offered tools change. LOG gets one line
of JSON for the offered tools and one for each tool result, with the time.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
TOOL = "everything__echo"
ARGUMENTS: Json = {"message": "from the agent"}
# The tools that are called, one after the other, and their arguments.
CALLS: list[tuple[str, Json]] = [(TOOL, ARGUMENTS)]
if sys.argv[2:] == ["search"]:
    CALLS = [
        ("find_tools", {"query": "repeat a message back to me"}),
        ("describe_tools", {"names": [TOOL]}),
        ("call_tool", {"name": TOOL, "arguments": ARGUMENTS}),
    ]
elif sys.argv[2:3] == ["wait"]:
    # The argument is named differently by Claude Code and by Codex.
    CALLS = [(sys.argv[3], {"command" if sys.argv[3] == "Bash" else "cmd": "sleep 0.2"})] * int(sys.argv[4])
elif sys.argv[2:]:
    CALLS = [(sys.argv[2], {})]


def note(**what: Any) -> None:
    with open(sys.argv[1], "a", encoding="utf-8") as log:
        log.write(json.dumps({"at": time.time(), **what}) + "\n")


def offered(tools: list[Json], space: str | None = None) -> list[tuple[str | None, str]]:
    """Returns every tool's name with its namespace."""
    found: list[tuple[str | None, str]] = []
    for tool in tools:
        if tool.get("type") == "namespace":
            found += offered(tool["tools"], tool["name"])
        else:
            found.append((space, tool.get("name") or tool.get("type", "")))
    return found


def wanted(tools: list[Json], results: list[str]) -> tuple[str | None, str] | None:
    """Returns the next tool to call after these results."""
    if results:
        note(said=results)
    if len(results) == len(CALLS):
        return None
    names = offered(tools)
    note(tools=[f"{space or ''}{name}" for space, name in names])
    return next((pair for pair in names if f"{pair[0] or ''}{pair[1]}".endswith(CALLS[len(results)][0])), None)


def texts(value: Any) -> str:
    """Returns all text in a tool's result."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(texts(part) for part in value)
    return texts(value.get("text", value.get("content", ""))) if isinstance(value, dict) else ""


def anthropic(asked: Json) -> list[Json]:
    parts = [part for turn in asked["messages"] if isinstance(turn["content"], list) for part in turn["content"]]
    results = [texts(part.get("content")) for part in parts if part.get("type") == "tool_result"]
    tool = wanted(asked.get("tools", []), results)
    if tool:
        block: Json = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": tool[1], "input": {}}
        delta: Json = {"type": "input_json_delta", "partial_json": json.dumps(CALLS[len(results)][1])}
    else:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": "the tool said: " + " ".join(results) if results else "no such tool"}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    reason = {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": reason, "usage": usage},
        {"type": "message_stop"},
    ]


def openai(asked: Json) -> list[Json]:
    results = [texts(item.get("output")) for item in asked["input"] if item.get("type") == "function_call_output"]
    tool = wanted(asked.get("tools", []), results)
    if tool:
        item: Json = {
            "type": "function_call",
            "id": f"fc_{len(results)}",
            "call_id": f"call_{len(results)}",
            "name": tool[1],
            "arguments": json.dumps(CALLS[len(results)][1]),
        }
        if tool[0]:
            item["namespace"] = tool[0]
    else:
        text = "the tool said: " + " ".join(results) if results else "no such tool"
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        "total_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "output": [item], "usage": usage}},
    ]


class Model(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.reply("application/json", b'{"data": [], "models": []}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        path = self.path.split("?")[0]
        if path.endswith("/messages"):
            self.stream(anthropic(asked))
        elif path.endswith("/responses"):
            self.stream(openai(asked))
        else:
            self.reply("application/json", b'{"input_tokens": 1}')

    def stream(self, events: list[Json]) -> None:
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self.reply("text/event-stream", text.encode())

    def reply(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
print(f"port {server.server_address[1]}", flush=True)
server.serve_forever()
