#!/usr/bin/env python3
"""Registers the HTTP echo servers with a running ContextForge gateway.

usage: contextforge.py <gateway base url> <base url of the echo servers> <number of servers>
"""

import json
import sys
import time
import urllib.error
import urllib.request

HEALTHY_SECONDS = 60


def main():
    gateway, servers, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    wait_until_healthy(gateway)
    for number in range(count):
        url = f"{servers}/s{number}/mcp"
        body = {"name": f"s{number}", "url": url, "transport": "STREAMABLEHTTP", "visibility": "public"}
        try:
            ask(gateway, "POST", "/gateways", body)
        except urllib.error.HTTPError as error:
            sys.exit(f"s{number}: {error.code} {error.read()[:300]!r}")
    print(len(ask(gateway, "GET", "/tools?limit=0")))


def wait_until_healthy(gateway):
    deadline = time.monotonic() + HEALTHY_SECONDS
    while True:
        try:
            return ask(gateway, "GET", "/health")
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"never healthy: {error}")
            time.sleep(0.3)  # between two questions; the gateway does not announce its health


def ask(gateway, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(gateway + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"null")


main()
