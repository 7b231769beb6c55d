"""The fixtures on the Python SDK: `server.py session|stateless|dual|push`, on stdin and stdout."""

import json
import sys
import warnings

import anyio
import mcp.types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.shared.subscriptions import ResourceUpdated, ToolsListChanged

warnings.simplefilter("ignore")
ERA = sys.argv[1]
TOOLS = ["echo", "steps", "log", "wait", "cancelled", "toggle", "update", "sample", "form", "url", "roots"]
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
TEXT = "matrix://text"

bus = InMemorySubscriptionBus()
cancelled: list[str] = []
changed = anyio.Event()
state = {"extra": False, "level": "debug", "watched": set()}


def is_stateless(ctx) -> bool:
    return ctx.protocol_version >= "2026-07-28"


def said(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


def question(name: str, stateless: bool):
    """Returns the server request of a tool and the type of the response."""
    if name == "sample":
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Say something"))
        params = types.CreateMessageRequestParams(messages=[message], max_tokens=50)
        return types.CreateMessageRequest(params=params), types.CreateMessageResult
    if name == "roots":
        return types.ListRootsRequest(), types.ListRootsResult
    if name == "form":
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        params = types.ElicitRequestFormParams(message="Who are you?", requested_schema=schema)
    else:
        # The stateless era has no `elicitationId`.
        name = {} if stateless else {"elicitation_id": "e-1"}
        params = types.ElicitRequestURLParams(message="Sign in", url="https://example.com/sign-in", **name)
    return types.ElicitRequest(params=params), types.ElicitResult


async def ask(ctx, params):
    """Asks in the one way that the era of the request has: by the result, or by a request while the tool runs. `push` does the
    latter in both eras, and fails in the stateless one."""
    request, kind = question(params.name, is_stateless(ctx))
    if is_stateless(ctx) and ERA != "push":
        if not params.input_responses:
            return types.InputRequiredResult(input_requests={"question": request}, request_state="asked")
        answer = params.input_responses["question"]
    else:
        answer = await ctx.session.send_request(
            request, kind, metadata=ServerMessageMetadata(related_request_id=ctx.request_id)
        )
    if hasattr(answer, "model_dump"):
        answer = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    return said(json.dumps(answer))


async def wait(ctx, who: str):
    await ctx.session.report_progress(1, None, who)
    try:
        await anyio.sleep_forever()
    finally:
        cancelled.append(who)
        changed.set()


async def was_cancelled(who: str) -> str:
    global changed
    while who not in cancelled:
        await changed.wait()
        changed = anyio.Event()
    return ",".join(cancelled)


async def log(ctx) -> None:
    for line in ["one", "two", "three"]:
        if is_stateless(ctx) or LEVELS.index(state["level"]) <= LEVELS.index("info"):
            await ctx.session.send_log_message("info", line, related_request_id=ctx.request_id)


async def toggle(ctx) -> None:
    state["extra"] = not state["extra"]
    await (bus.publish(ToolsListChanged()) if is_stateless(ctx) else ctx.session.send_tool_list_changed())


async def update(ctx) -> None:
    if is_stateless(ctx):
        await bus.publish(ResourceUpdated(uri=TEXT))
    elif TEXT in state["watched"]:
        await ctx.session.send_resource_updated(TEXT)


async def call_tool(ctx, params):
    arguments = params.arguments or {}
    match params.name:
        case "echo":
            return said(arguments["text"])
        case "steps":
            for step in [1, 2, 3]:
                await ctx.session.report_progress(step, 3)
        case "log":
            await log(ctx)
        case "wait":
            await wait(ctx, arguments["who"])
        case "cancelled":
            return said(await was_cancelled(arguments["who"]))
        case "toggle":
            await toggle(ctx)
        case "update":
            await update(ctx)
        case "sample" | "form" | "url" | "roots":
            return await ask(ctx, params)
    return said("done")


async def list_tools(ctx, params):
    names = TOOLS + (["extra"] if state["extra"] else [])
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in names])


async def list_resources(ctx, params):
    return types.ListResourcesResult(resources=[types.Resource(uri=TEXT, name="text")])


async def list_templates(ctx, params):
    template = types.ResourceTemplate(uri_template="matrix://item/{id}", name="item")
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(ctx, params):
    text = "the text" if params.uri == TEXT else "item " + params.uri.removeprefix("matrix://item/")
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])


async def list_prompts(ctx, params):
    argument = types.PromptArgument(name="name", required=True)
    return types.ListPromptsResult(prompts=[types.Prompt(name="greeting", arguments=[argument])])


async def get_prompt(ctx, params):
    content = types.TextContent(type="text", text=f"Hello, {params.arguments['name']}!")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


async def complete(ctx, params):
    values = [name for name in ["ada", "alan"] if name.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values))


async def set_level(ctx, params):
    state["level"] = params.level
    return types.EmptyResult()


async def subscribe(ctx, params):
    state["watched"].add(params.uri)
    return types.EmptyResult()


async def unsubscribe(ctx, params):
    state["watched"].discard(params.uri)
    return types.EmptyResult()


server = Server(
    "matrix-python",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_subscribe_resource=subscribe,
    on_unsubscribe_resource=unsubscribe,
    on_subscriptions_listen=ListenHandler(bus),
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_completion=complete,
    on_set_logging_level=set_level,
)


async def without_sessions(read, write, forward) -> None:
    """Passes messages on, and refuses to open a session."""
    async with forward:
        async for message in read:
            request = getattr(message, "message", None)
            if getattr(request, "method", None) != "initialize":
                await forward.send(message)
                continue
            data = {"supported": ["2026-07-28"], "requested": request.params["protocolVersion"]}
            error = types.ErrorData(code=-32022, message="Unsupported protocol version", data=data)
            await write.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error)))


async def main() -> None:
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        if ERA == "session":
            await serve_loop(server, read, write, lifespan_state={}, init_options=options)
        elif ERA == "stateless":
            forward, stateless = anyio.create_memory_object_stream(0)
            tasks.start_soon(without_sessions, read, write, forward)
            await server.run(stateless, write, options)
        else:
            await server.run(read, write, options)


anyio.run(main)
