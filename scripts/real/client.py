"""Lists and calls with the official Python client: client.py TARGET ERA, where TARGET is a URL or the program to start."""

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main() -> None:
    target, mode = sys.argv[1], sys.argv[2]
    if not target.startswith("http"):
        env = {"TOOLCRIB_HOME": os.environ["TOOLCRIB_HOME"]}
        target = stdio_client(StdioServerParameters(command=target, args=["stdio"], env=env))
    async with Client(target, mode=mode) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert "everything__echo" in tools and "time__get_current_time" in tools, tools
        echo = await client.call_tool("everything__echo", {"message": "from python"})
        time = await client.call_tool("time__get_current_time", {"timezone": "UTC"})
        text = time.content[0].text.replace("\n", " ")
        print(f"{len(tools)} tools |", echo.content[0].text, "|", text)


asyncio.run(main())
