"""pytest plugin: runs the interaction tests of the Python SDK over real transports, with or without toolcrib.

The suite connects every client through a factory per transport. This plugin replaces the factory of Streamable HTTP and
leaves out the tests of the other factories. The environment selects the leg:

    INTERACTION_TRANSPORT   `http` or `stdio`: the transport of the server
    INTERACTION_TOOLCRIB    the program; without it the client connects directly
    INTERACTION_OUT         the file for the results: {test: {"outcome": …, "why": …}}
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import anyio
import pytest
import uvicorn
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

TRANSPORT = os.environ["INTERACTION_TRANSPORT"]
TOOLCRIB = os.environ.get("INTERACTION_TOOLCRIB")
REPLACED = "streamable-http"
PIPE = pathlib.Path(__file__).with_name("pipe.py")
# Longest message of a test server.
LONGEST_LINE = 64 << 20
PATIENCE_SECONDS = 20


# --- the server ----------------------------------------------------------------------------------------------------


class AppServer(uvicorn.Server):
    """A server that leaves the signal handlers of the test process alone."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield


@contextlib.asynccontextmanager
async def served_over_http(server):
    """Yields the URL of the server on a free port."""
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(transport_security=security)
    settings = {"log_level": "critical", "lifespan": "off", "ws": "none", "timeout_graceful_shutdown": 1}
    http = AppServer(uvicorn.Config(app, host="127.0.0.1", port=0, **settings))
    async with server.session_manager.run(), anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        with anyio.fail_after(PATIENCE_SECONDS):
            while not http.started:
                await anyio.sleep(0.005)
        port = http.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            http.should_exit = True
            http.force_exit = True


class SocketText:
    """A connection in the form of the text files that `stdio_server` takes."""

    def __init__(self, stream):
        self.stream = stream
        self.buffered = BufferedByteReceiveStream(stream)

    async def __aiter__(self):
        with contextlib.suppress(anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                line = await self.buffered.receive_until(b"\n", LONGEST_LINE)
                yield line.decode()

    async def write(self, text):
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self.stream.send(text.encode())

    async def flush(self):
        pass


@contextlib.asynccontextmanager
async def served_over_stdio(server):
    """Yields the command that connects its stdin and stdout to the server; each process is one connection."""
    lowlevel = server._lowlevel_server if isinstance(server, MCPServer) else server

    async def connection(stream):
        text = SocketText(stream)
        async with stream, stdio_server(text, text) as (read, write):
            await lowlevel.run(read, write, lowlevel.create_initialization_options())

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "server")
        async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, connection)
            yield [sys.executable, "-SE", str(PIPE), path]
            tasks.cancel_scope.cancel()


# --- the gateway ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def gateway(declaration):
    """Runs toolcrib in the default configuration in front of one server; yields the URL of that server."""
    with tempfile.TemporaryDirectory() as home:
        pathlib.Path(home, "config.toml").write_text(f"[servers.ref]\n{declaration}\n", encoding="utf-8")
        log = pathlib.Path(home, "stderr")
        env = {**os.environ, "TOOLCRIB_HOME": home}
        with log.open("wb") as stderr:
            command = [TOOLCRIB, "serve", "--listen", "127.0.0.1:0"]
            process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=None, stderr=stderr, env=env)
        try:
            yield f"{await listening(log)}/s/ref"
        finally:
            with anyio.CancelScope(shield=True):
                process.terminate()
                with anyio.move_on_after(PATIENCE_SECONDS) as scope:
                    await process.wait()
                if scope.cancelled_caught:
                    process.kill()
                    await process.wait()


async def listening(log):
    """Waits until the gateway has printed its address."""
    with anyio.move_on_after(PATIENCE_SECONDS):
        while True:
            if found := re.search(r"listening on (\S+)", log.read_text(encoding="utf-8")):
                return found[1]
            await anyio.sleep(0.005)
    raise RuntimeError(f"the gateway is not listening: {log.read_text(encoding='utf-8')}")


@contextlib.asynccontextmanager
async def reachable(server):
    """Yields what a client connects to: a URL, or a command."""
    serve = served_over_http if TRANSPORT == "http" else served_over_stdio
    async with serve(server) as found:
        if TRANSPORT == "http":
            direct, declaration = found, f"url = '{found}'"
        else:
            command, *args = found
            direct = StdioServerParameters(command=command, args=args)
            declaration = f"command = '{command}'\nargs = {json.dumps(args)}"
        if not TOOLCRIB:
            yield direct
            return
        async with gateway(declaration) as url:
            yield url


@contextlib.asynccontextmanager
async def connect(server, *, spec_version=LATEST_HANDSHAKE_VERSION, **options):
    """Takes the arguments of the suite's own factories."""
    mode = spec_version if spec_version in MODERN_PROTOCOL_VERSIONS else "legacy"
    async with reachable(server) as target, Client(target, mode=mode, **options) as client:
        yield client


# --- pytest --------------------------------------------------------------------------------------------------------

results = {}


def pytest_collection_modifyitems(config, items):
    sys.modules["tests.interaction.conftest"]._FACTORIES[REPLACED] = connect
    kept, left_out = [], []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        transport = parameters.get("connect", (None,))[0]
        # What the SDK itself cannot do is expected to fail; behind a gateway, that says nothing.
        expected_to_fail = any(item.iter_markers("xfail"))
        (kept if transport == REPLACED and not expected_to_fail else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_logreport(report):
    name = report.nodeid.removeprefix("tests/interaction/").replace(f"[{REPLACED}-", "[")
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash else str(report.longrepr)
        results[name] = {"outcome": "failed", "why": why}
    elif report.when == "call":
        results.setdefault(name, {"outcome": report.outcome, "why": ""})


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        pathlib.Path(os.environ["INTERACTION_OUT"]).write_text(json.dumps(results), encoding="utf-8")


@pytest.fixture(autouse=True)
def blockbuster():
    """Replaces the check of the SDK for blocking calls: it is about the SDK, not about the gateway."""
