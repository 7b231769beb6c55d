"""Counts with the official Python client and its default environment, then stays connected until stdin ends: shared.py PROGRAM."""

import asyncio
import sys

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main() -> None:
    server = stdio_client(StdioServerParameters(command=sys.argv[1], args=["stdio"]))
    async with Client(server) as client:
        result = await client.call_tool("counter__add", {"n": 1})
        print("count", result.content[0].text, flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
