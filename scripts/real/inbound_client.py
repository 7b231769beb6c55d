"""Logs in to a gateway by itself with the Python SDK, and calls a tool. Prints the text of the answer.

    CHROMIUM=path python inbound_client.py URL TOOL FOLDER      FOLDER has oauth_browser.mjs
"""

import asyncio
import subprocess
import sys
import urllib.parse

import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

URL, TOOL, FOLDER = sys.argv[1:]


class Storage:
    """Tokens and the registration of the client, in memory."""

    def __init__(self):
        self.tokens = self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


async def main():
    arrived = asyncio.get_running_loop().create_future()

    async def receive(reader, writer):
        target = (await reader.readline()).split()[1].decode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone")
        await writer.drain()
        writer.close()
        if not arrived.done():
            arrived.set_result(dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(target).query)))

    listener = await asyncio.start_server(receive, "127.0.0.1", 0)
    redirect = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/callback"
    browsers = []

    async def open_browser(page):
        browsers.append(subprocess.Popen(["node", "oauth_browser.mjs", page], cwd=FOLDER, stdout=subprocess.DEVNULL))

    async def wait_for_code():
        query = await asyncio.wait_for(arrived, 60)
        return AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))

    metadata = OAuthClientMetadata(redirect_uris=[redirect], client_name="check", token_endpoint_auth_method="none")
    login = OAuthClientProvider(URL, metadata, Storage(), open_browser, wait_for_code)
    async with httpx2.AsyncClient(auth=login, timeout=60) as http:
        async with Client(streamable_http_client(URL, http_client=http)) as client:
            answer = await client.call_tool(TOOL, {})
            print(answer.content[0].text)
    for browser in browsers:
        browser.wait(60)


asyncio.run(main())
