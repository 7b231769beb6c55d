"""Tests prompts, resources, completion, progress, server requests and updates with the official Python client and the official everything server.

features.py TARGET ERA [SERVER]: TARGET is a URL or the program to start. SERVER is the server's name at a gateway that
has several; without it, TARGET is that one server under its own names. Prints ✓ or ✗ for each; exits 0 if all pass.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

TARGET, ERA = sys.argv[1], sys.argv[2]
SERVER = sys.argv[3] if len(sys.argv) > 3 else None
STATIC = "demo://resource/static/document/instructions.md"
DYNAMIC = "demo://resource/dynamic/text/7"

asked: list[str] = []
updated: asyncio.Queue[str] = asyncio.Queue()


def name(own: str) -> str:
    return f"{SERVER}__{own}" if SERVER else own


def uri(own: str) -> str:
    return f"toolcrib://{SERVER}/{quote(own, safe='')}" if SERVER else own


async def sample(_context: object, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    content = params.messages[0].content
    asked.append(content.text)
    answer = types.TextContent(type="text", text="a vice, surely")
    return types.CreateMessageResult(role="assistant", content=answer, model="whittled")


async def elicit(_context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    asked.append(params.message)
    if "interpretations" in params.message:
        return types.ElicitResult(action="accept", content={"interpretation": "technical"})
    return types.ElicitResult(action="accept", content={"name": "Ada Plane", "check": True, "integer": 7})


async def roots(_context: object) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///srv/bench", name="the bench")])


async def hear(message: object) -> None:
    if isinstance(message, types.ResourceUpdatedNotification):
        updated.put_nowait(str(message.params.uri))


async def tools(client: Client) -> str:
    listed = [tool.name for tool in (await client.list_tools()).tools]
    for own in ("echo", "trigger-sampling-request", "trigger-elicitation-request"):
        assert name(own) in listed, f"{name(own)} is not among {listed}"
    return f"{len(listed)} of them"


async def prompts(client: Client) -> str:
    listed = [prompt.name for prompt in (await client.list_prompts()).prompts]
    assert name("args-prompt") in listed, listed
    got = await client.get_prompt(name("args-prompt"), {"city": "Sheffield", "state": "Yorkshire"})
    text = got.messages[0].content.text
    assert text == "What's weather in Sheffield, Yorkshire?", text
    return f"{len(listed)} of them, {text}"


async def resources(client: Client) -> str:
    listed = [str(resource.uri) for resource in (await client.list_resources()).resources]
    assert uri(STATIC) in listed, listed
    got = (await client.read_resource(uri(STATIC))).contents[0]
    assert str(got.uri) == uri(STATIC), got.uri
    assert "Everything Server" in got.text, got.text[:80]
    return f"{len(listed)} of them, {got.uri} has {len(got.text)} characters"


async def templates(client: Client) -> str:
    listed = [template.uri_template for template in (await client.list_resource_templates()).resource_templates]
    assert any("demo" in template and "resourceId" in template for template in listed), listed
    got = (await client.read_resource(uri(DYNAMIC))).contents[0]
    assert "Resource 7" in got.text, got.text
    return f"{len(listed)} of them, {got.text[:40]}"


async def completion(client: Client) -> str:
    reference = types.PromptReference(type="ref/prompt", name=name("completable-prompt"))
    got = await client.complete(reference, {"name": "name", "value": "A"}, {"department": "Engineering"})
    assert got.completion.values == ["Alice"], got.completion
    return f"name=A… is {got.completion.values[0]} in Engineering"


async def progress(client: Client) -> str:
    seen: list[tuple[float, float | None]] = []

    async def step(done: float, total: float | None, _message: str | None) -> None:
        seen.append((done, total))

    tool = name("trigger-long-running-operation")
    got = await client.call_tool(tool, {"duration": 1, "steps": 4}, progress_callback=step)
    assert not got.is_error and "completed" in got.content[0].text, got
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)], seen
    return "1, 2, 3, 4 of 4"


async def sampling(client: Client) -> str:
    asked.clear()
    got = await client.call_tool(name("trigger-sampling-request"), {"prompt": "what holds?", "maxTokens": 9})
    text = got.content[0].text
    assert not got.is_error and "a vice, surely" in text, text
    assert len(asked) == 1 and "what holds?" in asked[0], asked
    return f"asked once ({asked[0]}), answered"


async def elicitation(client: Client) -> str:
    asked.clear()
    got = await client.call_tool(name("trigger-elicitation-request"), {})
    text = "\n".join(block.text for block in got.content)
    assert not got.is_error and "- Name: Ada Plane" in text and "- Favorite Integer: 7" in text, text
    assert len(asked) == 1, asked
    return f"asked once ({asked[0]}), answered"


async def update(client: Client) -> str:
    wanted = uri(STATIC)

    async def toggle() -> str:
        return (await client.call_tool(name("toggle-subscriber-updates"), {})).content[0].text

    async def begin() -> None:
        if not (await toggle()).startswith("Started"):
            assert (await toggle()).startswith("Started")

    if client.protocol_version >= "2026":
        async with client.listen(resource_subscriptions=[wanted]) as heard:
            await begin()
            event = await asyncio.wait_for(anext(aiter(heard)), 15)
            await toggle()
            assert event.uri == wanted, event
            return f"heard {event.uri}"
    await client.subscribe_resource(wanted)
    await begin()
    heard = await asyncio.wait_for(updated.get(), 15)
    await toggle()
    await client.unsubscribe_resource(wanted)
    assert heard == wanted, heard
    return f"heard {heard}"


async def root_list(client: Client) -> str:
    text = (await client.call_tool(name("get-roots-list"), {})).content[0].text
    assert "file:///srv/bench" in text, text
    return "the client's own"


async def structure(client: Client) -> str:
    got = await client.call_tool(name("get-structured-content"), {"location": "Chicago"})
    assert got.structured_content["conditions"], got
    return str(got.structured_content)


async def task_only(client: Client) -> str:
    """A task-only tool; this client does not support tasks."""
    asked.clear()
    got = await client.call_tool(name("simulate-research-query"), {"topic": "planes", "ambiguous": True})
    text = got.content[0].text
    assert not got.is_error and "# Research Report: planes" in text, text
    assert len(asked) == 1 and "planes" in asked[0], asked
    return f"asked once, {text.splitlines()[0]}"


async def main() -> int:
    target = TARGET
    if not target.startswith("http"):
        env = {"TOOLCRIB_HOME": os.environ["TOOLCRIB_HOME"]}
        target = stdio_client(StdioServerParameters(command=target, args=["stdio"], env=env))
    checks: dict[str, Callable[[Client], Awaitable[str]]] = {
        "tools": tools,
        "prompts": prompts,
        "resources": resources,
        "resource templates": templates,
        "completion": completion,
        "structured content": structure,
        "progress": progress,
        "sampling": sampling,
        "elicitation": elicitation,
        "roots": root_list,
        "resource update": update,
    }
    if ERA >= "2026" and ERA[0].isdigit():
        checks["task-only tool"] = task_only
    failed = 0
    client = Client(
        target,
        mode=ERA,
        sampling_callback=sample,
        elicitation_callback=elicit,
        list_roots_callback=roots,
        message_handler=hear,
    )
    async with client:
        for title, run in checks.items():
            try:
                print(f"✓ {title}: {await asyncio.wait_for(run(client), 30)}", flush=True)
            except Exception as error:  # the other checks still run
                failed = 1
                print(f"✗ {title}: {type(error).__name__}: {str(error)[:400]}", flush=True)
    return failed


sys.exit(asyncio.run(main()))
