"""Lists once with a published Python client, with the settings that its user gets without choosing any.

client.py LIBRARY TARGETS: it loads the library, prints `ready` and reads JSON from the pipe TARGETS, `{TARGET: {"command", "args",
"env"} or {"url"}}`. Then it connects to all of them at the same time. For each one it prints a line of JSON, `{"target", "seconds",
"tools" or "error"}`, and another one if disconnecting failed.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

Target = dict[str, Any]
library = sys.argv[1]


def transport(target: Target) -> Any:
    return stdio_client(StdioServerParameters(**target)) if "command" in target else streamable_http_client(target["url"])


# `listed` connects, with `stack` to disconnect, and returns the names of the tools.
if library == "python-2":
    from mcp import Client

    async def listed(target: Target, stack: AsyncExitStack) -> list[str]:
        client = await stack.enter_async_context(Client(transport(target)))
        return [tool.name for tool in (await client.list_tools()).tools]

elif library == "python-1":
    from mcp import ClientSession

    async def listed(target: Target, stack: AsyncExitStack) -> list[str]:
        read, write, *_ = await stack.enter_async_context(transport(target))
        session = await stack.enter_async_context(ClientSession(read, write))
        await session.initialize()
        return [tool.name for tool in (await session.list_tools()).tools]

elif library == "langchain":
    from langchain_mcp_adapters.client import MultiServerMCPClient

    async def listed(target: Target, stack: AsyncExitStack) -> list[str]:
        kind = "stdio" if "command" in target else "streamable_http"
        return [tool.name for tool in await MultiServerMCPClient({"target": {"transport": kind, **target}}).get_tools()]

elif library == "openai-agents":
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    async def listed(target: Target, stack: AsyncExitStack) -> list[str]:
        kind = MCPServerStdio if "command" in target else MCPServerStreamableHttp
        server = await stack.enter_async_context(kind(params=target))
        return [tool.name for tool in await server.list_tools()]

elif library == "pydantic-ai":
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    async def listed(target: Target, stack: AsyncExitStack) -> list[str]:
        toolset = MCPToolset(StdioTransport(**target) if "command" in target else target["url"])
        await stack.enter_async_context(toolset)
        return [tool.name for tool in await toolset.list_tools()]

elif library == "strands":
    from strands.tools.mcp import MCPClient

    async def listed(target: Target, stack: AsyncExitStack) -> list[str]:
        client = await asyncio.to_thread(MCPClient(lambda: transport(target)).start)
        stack.push_async_callback(asyncio.to_thread, client.stop, None, None, None)
        return [tool.tool_name for tool in await asyncio.to_thread(client.list_tools_sync)]


def causes(error: BaseException) -> str:
    """Returns the text of an error, or of those inside it if it is a group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(causes(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


async def contact(name: str, target: Target) -> None:
    began = time.monotonic()

    def report(**what: Any) -> None:
        print(json.dumps({"target": name, "seconds": round(time.monotonic() - began, 2), **what}), flush=True)

    try:
        async with AsyncExitStack() as stack:
            report(tools=await listed(target, stack))
    except Exception as error:
        report(error=causes(error))


async def main(targets: dict[str, Target]) -> None:
    await asyncio.gather(*(contact(name, target) for name, target in targets.items()))


print("ready", flush=True)
with open(sys.argv[2]) as given:
    targets = json.load(given)
asyncio.run(main(targets))
