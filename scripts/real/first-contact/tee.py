"""Passes on everything between an agent and the gateway, and notes each list of tools that the gateway answers with.

tee.py LOG COMMAND…: starts a server with stdio. tee.py LOG http://HOST:PORT/PATH: listens and prints its own URL. LOG gets a line
of JSON for each list, `{"at", "tools"}`.
"""

import json
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable


def pump(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    """Copies what the gateway says, and notes the lists in it."""
    heard = b""
    while data := read(65536):
        write(data)
        # Sizes of HTTP's chunks are left out.
        heard = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", heard + data)
        while (start := heard.find(b'"tools":[')) >= 0:
            try:
                tools, length = json.JSONDecoder().raw_decode(heard[start + 8 :].decode(errors="replace"))
            except ValueError:
                break  # The rest has not come yet.
            with open(sys.argv[1], "a") as log:
                log.write(json.dumps({"at": time.time(), "tools": [tool["name"] for tool in tools]}) + "\n")
            heard = heard[start + 8 + length :]


class Relay(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with socket.create_connection(gateway) as server:
            threading.Thread(target=self.ask, args=(server,), daemon=True).start()
            pump(server.recv, self.request.sendall)

    def ask(self, server: socket.socket) -> None:
        while data := self.request.recv(65536):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


if found := re.fullmatch(r"http://([^/]+):(\d+)(/.*)", sys.argv[2]):
    gateway = (found[1], int(found[2]))
    socketserver.ThreadingTCPServer.daemon_threads = True
    relay = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay)
    print(f"http://127.0.0.1:{relay.server_address[1]}{found[3]}", flush=True)
    relay.serve_forever()
else:
    # The server reads from the agent itself.
    server = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, bufsize=0)
    assert server.stdout

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    pump(server.stdout.read, write)
    sys.exit(server.wait())
