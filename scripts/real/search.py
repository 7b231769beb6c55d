"""Finds, describes and calls tools in search mode with the official Python client: search.py TARGET ERA, where TARGET is a URL or the program to start."""

import asyncio
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

TASK = "repeat a message back to me"


async def main() -> None:
    target, mode = sys.argv[1], sys.argv[2]
    if not target.startswith("http"):
        env = {"TOOLCRIB_HOME": os.environ["TOOLCRIB_HOME"]}
        target = stdio_client(StdioServerParameters(command=target, args=["stdio"], env=env))
    async with Client(target, mode=mode) as client:

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return await client.call_tool("call_tool", {"name": name, "arguments": arguments})

        listed = [tool.name for tool in (await client.list_tools()).tools]
        assert listed == ["find_tools", "describe_tools", "call_tool"], listed
        found = await client.call_tool("find_tools", {"query": TASK})
        name = found.structured_content["tools"][0]["name"]
        described = await client.call_tool("describe_tools", {"names": [name]})
        schema = described.structured_content["tools"][0]["inputSchema"]
        echo = await call(name, {schema["required"][0]: "from python"})

        direct = await client.call_tool("everything__get-tiny-image", {})
        assert await call("everything__get-tiny-image", {}) == direct, "an image differs by call_tool"
        steps: list[float] = []

        async def on_progress(progress: float, _total: float | None, _message: str | None) -> None:
            steps.append(progress)

        slow = {"name": "everything__trigger-long-running-operation", "arguments": {"duration": 0.4, "steps": 4}}
        await client.call_tool("call_tool", slow, progress_callback=on_progress)
        assert steps == [1, 2, 3, 4], steps
        try:
            denied = await call("everything__get-env", {})
            assert denied.is_error, denied
            reason = denied.content[0].text
        except Exception as error:
            reason = str(error)
        assert "policy.deny" in reason, reason
        print(f"{name} |", echo.content[0].text, "| image, progress, denial")


asyncio.run(main())
