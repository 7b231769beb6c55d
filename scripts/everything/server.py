"""The everything-server of the Python SDK, from its source package: `server.py --stdio`, or `server.py --http` on a free port."""

import socket
import sys

import uvicorn
from mcp_everything_server.server import event_store, mcp

if sys.argv[1] == "--stdio":
    mcp.run("stdio")
else:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    app = mcp.streamable_http_app(event_store=event_store, retry_interval=100)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])
