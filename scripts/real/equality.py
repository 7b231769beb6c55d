"""Compares published servers directly and behind toolcrib: `equality.py TOOLCRIB SERVERS.json`.

SERVERS.json is {name: {"command": …, "args": […], "env": {…}}}. Every server is asked for its lists, and for five things that it does
not have: a tool, arguments, a prompt, a resource, a method. The answers through `/mcp/s/NAME`, in the default configuration, must be
the same bytes as over the server's own pipe, for a client with a session, and for a stateless one if the server supports that era.
Prints a line with ✓ or ✗ per server and era, and exits 0 if all are equal.
"""

import contextlib
import http.client
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

PATIENCE_SECONDS = 60
CLIENT = {"name": "equality", "version": "1"}
SESSION, STATELESS = "2025-11-25", "2026-07-28"
# All that a client can declare: some servers offer more tools then.
CAPABILITIES = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}, "url": {}}}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
}
LISTS = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]


def raw_members(text):
    """Returns the members of a JSON object as they are written."""
    decoder, members = json.JSONDecoder(), {}
    at = text.index("{") + 1
    skip = re.compile(r"[\s,:]*")
    while True:
        at = skip.match(text, at).end()
        if text[at] == "}":
            return members
        key, at = decoder.raw_decode(text, at)
        start = skip.match(text, at).end()
        _, at = decoder.raw_decode(text, start)
        members[key] = text[start:at]


def answer(text):
    """Returns the kind and the bytes of an answer."""
    members = raw_members(text)
    kind = "result" if "result" in members else "error"
    return kind, members.get(kind, text)


# --- connections ---------------------------------------------------------------------------------------------------


class Pipe:
    """The server's own stdin and stdout."""

    def __init__(self, server):
        env = {**os.environ, **server.get("env", {})}
        command = [server["command"], *server.get("args", [])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def request(self, message):
        self.send(message)
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            line = self.lines.get(timeout=max(0.01, until - time.monotonic()))
            if line is None:
                raise RuntimeError("the server exited")
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if found.get("id") == message["id"] and "method" not in found:
                    return line
                if "method" in found and "id" in found:
                    refusal = {"code": -32601, "message": "Method not found"}
                    self.send({"jsonrpc": "2.0", "id": found["id"], "error": refusal})

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Http:
    """An endpoint of toolcrib."""

    def __init__(self, url):
        self.url = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(self.url.netloc, timeout=PATIENCE_SECONDS)
        self.headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

    def post(self, message):
        headers = dict(self.headers)
        params = message.get("params", {})
        if params.get("_meta"):
            headers |= {"mcp-protocol-version": STATELESS, "mcp-method": message["method"]}
            if name := params.get("name", params.get("uri")):
                headers["mcp-name"] = name
        self.connection.request("POST", self.url.path, json.dumps(message), headers)
        response = self.connection.getresponse()
        body = response.read().decode()
        if session := response.headers.get("mcp-session-id"):
            self.headers |= {"mcp-session-id": session, "mcp-protocol-version": SESSION}
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            texts = [line[5:].strip() for line in body.splitlines() if line.startswith("data:")]
            return next(text for text in texts if text and json.loads(text).get("id") == message.get("id"))
        return body

    request = send = post

    def close(self):
        self.connection.close()


@contextlib.contextmanager
def gateway(toolcrib, servers):
    with tempfile.TemporaryDirectory() as home:
        tables = []
        for name, server in servers.items():
            env = "".join(f"{key} = {json.dumps(value)}, " for key, value in server.get("env", {}).items()).rstrip(", ")
            args = json.dumps(server.get("args", []))
            tables.append(f"[servers.{name}]\ncommand = {json.dumps(server['command'])}\nargs = {args}\nenv = {{ {env} }}\n")
        pathlib.Path(home, "config.toml").write_text("\n".join(tables))
        log = pathlib.Path(home, "stderr")
        with log.open("w") as stderr:
            command = [toolcrib, "serve", "--listen", "127.0.0.1:0"]
            program = subprocess.Popen(command, stderr=stderr, env={**os.environ, "TOOLCRIB_HOME": home})
        try:
            until = time.monotonic() + 20
            while not (found := re.search(r"listening on (\S+)", log.read_text())):
                if time.monotonic() > until or program.poll() is not None:
                    sys.exit(f"the gateway is not listening:\n{log.read_text()}")
                time.sleep(0.02)
            yield found[1]
        finally:
            program.terminate()
            program.wait(60)


# --- questions -----------------------------------------------------------------------------------------------------


class Client:
    def __init__(self, connection, stateless):
        self.connection, self.stateless, self.last = connection, stateless, 0

    def ask(self, method, params=None):
        self.last += 1
        params = dict(params or {})
        if self.stateless:
            params["_meta"] = ENVELOPE
        return self.connection.request({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params})

    def open(self):
        """Returns the answer to the first request, or None if the server does not support the era."""
        if self.stateless:
            text = self.ask("server/discover")
            kind, found = answer(text)
            supported = kind == "result" and STATELESS in json.loads(found).get("supportedVersions", [])
            return text if supported else None
        params = {"protocolVersion": SESSION, "capabilities": CAPABILITIES, "clientInfo": CLIENT}
        text = self.ask("initialize", params)
        self.connection.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return text


def wrong_arguments(listed):
    """Returns a tool that requires arguments, which then are left out, or one with an argument of a wrong type."""
    tools = json.loads(listed)["tools"]
    for tool in tools:
        if tool["inputSchema"].get("required"):
            return {"name": tool["name"], "arguments": {}}
    for tool in tools:
        for name, schema in tool["inputSchema"].get("properties", {}).items():
            if schema.get("type") in ("string", "number", "integer"):
                return {"name": tool["name"], "arguments": {name: {"not": "this type"}}}
    return None


def questions(client):
    """Returns {question: (kind, bytes)}, or None if the server does not support the era."""
    opened = client.open()
    if opened is None:
        return None
    found = {method: answer(client.ask(method)) for method in LISTS}
    found["unknown tool"] = answer(client.ask("tools/call", {"name": "no-such-tool", "arguments": {}}))
    kind, listed = found["tools/list"]
    if kind == "result" and (call := wrong_arguments(listed)):
        found["wrong arguments"] = answer(client.ask("tools/call", call))
    found["unknown prompt"] = answer(client.ask("prompts/get", {"name": "no-such-prompt"}))
    found["unknown resource"] = answer(client.ask("resources/read", {"uri": "nothing://no-such-resource"}))
    found["unknown method"] = answer(client.ask("equality/unknown"))
    return found


def asked(make, stateless):
    connection = make()
    try:
        return questions(Client(connection, stateless))
    finally:
        connection.close()


def judge(direct, again, through):
    """Returns the questions whose answers differ, with both answers. What differs between two direct runs is not compared."""
    stable = [question for question in direct if direct[question] == again.get(question)]
    return {question: (direct[question], through.get(question)) for question in stable if direct[question] != through.get(question)}


def check(name, server, url, stateless):
    """Prints the verdict; returns True if it is good."""
    era = "stateless" if stateless else "session"
    try:
        direct = asked(lambda: Pipe(server), stateless)
        if direct is None:
            print(f"– {name}, {era}: not supported by the server", flush=True)
            return True
        again = asked(lambda: Pipe(server), stateless)
        through = asked(lambda: Http(f"{url}/s/{name}"), stateless)
    except (OSError, RuntimeError, queue.Empty, ValueError, KeyError, StopIteration) as error:
        print(f"✗ {name}, {era}: {type(error).__name__}: {error}", flush=True)
        return False
    differing = judge(direct, again, through or {})
    kind, listed = direct["tools/list"]
    size = f"{len(json.loads(listed)['tools'])} tools" if kind == "result" else "tools/list fails"
    print(f"{'✗' if differing else '✓'} {name}, {era}: {size}, {len(direct) - len(differing)} of {len(direct)} answers equal", flush=True)
    for question, (wanted, got) in differing.items():
        print(f"    {question}\n      directly: {shown(wanted, got)}\n      through:  {shown(got, wanted)}", flush=True)
    return not differing


def shown(one, other):
    """Returns an answer from where it begins to differ."""
    text, beside = (" ".join(found) if found else "none" for found in (one, other))
    start = next((at for at, (left, right) in enumerate(zip(text, beside)) if left != right), min(len(text), len(beside)))
    start = max(0, start - 60)
    return ("…" if start else "") + text[start : start + 240]


def main():
    toolcrib, servers = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())
    equal = True
    # A server that supports both eras is started in the era of its first client.
    for stateless in (False, True):
        with gateway(toolcrib, servers) as url:
            for name, server in servers.items():
                equal &= check(name, server, url, stateless)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
