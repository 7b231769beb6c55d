"""Logs in to a gateway by itself with the client of fastmcp, and calls a tool. Prints the text of the answer.

    CHROMIUM=path python inbound_fastmcp.py URL TOOL FOLDER      FOLDER has oauth_browser.mjs
"""

import asyncio
import subprocess
import sys

from fastmcp import Client
from fastmcp.client.auth import OAuth

URL, TOOL, FOLDER = sys.argv[1:]


class Login(OAuth):
    """Opens the page of the authorization server in the browser of the script."""

    async def redirect_handler(self, authorization_url):
        subprocess.Popen(["node", "oauth_browser.mjs", authorization_url], cwd=FOLDER, stdout=subprocess.DEVNULL)


async def main():
    async with Client(URL, auth=Login()) as client:
        answer = await client.call_tool(TOOL, {})
        print(answer.content[0].text)


asyncio.run(main())
