"""Checks of every feature with the Python SDK: `client.py GATEWAY SERVER session|stateless`."""

import json
import sys
import uuid
import warnings
from contextlib import AsyncExitStack

import anyio
import mcp.types as types
from mcp import Client
from mcp.shared.subscriptions import ResourceUpdated

warnings.simplefilter("ignore")
GATEWAY, SERVER, ERA = sys.argv[1:4]
STATELESS = ERA == "stateless"
TEXT = "matrix://text"
PATIENCE = 10


class Lacks(Exception):
    """The SDK does not support the feature."""


class Peer:
    """A client and the messages that it received, in order."""

    def __init__(self) -> None:
        self.send, self.receive = anyio.create_memory_object_stream(1000)

    def hear(self, method: str, params) -> None:
        self.send.send_nowait((method, params))

    async def next(self, method: str):
        """Returns the next message, which must have this method."""
        with anyio.move_on_after(PATIENCE):
            heard, params = await self.receive.receive()
            assert heard == method, f"{heard} instead of {method}"
            return params
        raise AssertionError(f"no {method} in time")

    def is_empty(self) -> None:
        assert self.receive.statistics().current_buffer_used == 0, self.receive.receive_nowait()

    async def on_message(self, message) -> None:
        # A stateless client gets it from its stream.
        method = getattr(message, "method", "")
        if not STATELESS and method in ("notifications/tools/list_changed", "notifications/resources/updated"):
            self.hear(method, message.params)

    async def on_log(self, params) -> None:
        self.hear("notifications/message", params)

    async def on_sampling(self, context, params):
        self.hear("sampling/createMessage", params)
        content = types.TextContent(type="text", text="a sample")
        return types.CreateMessageResult(role="assistant", model="none", content=content)

    async def on_elicitation(self, context, params):
        self.hear("elicitation/create", params)
        return types.ElicitResult(action="accept", content=None if params.mode == "url" else {"name": "ada"})

    async def on_roots(self, context):
        self.hear("roots/list", None)
        return types.ListRootsResult(roots=[types.Root(uri="file:///home/ada", name="ada")])

    async def connect(self, stack: AsyncExitStack, url: str, level: str | None = None) -> "Peer":
        self.stack = stack
        self.client = await stack.enter_async_context(
            Client(
                url,
                mode="2026-07-28" if STATELESS else "legacy",
                log_level=level if STATELESS else None,
                logging_callback=self.on_log,
                message_handler=self.on_message,
                sampling_callback=self.on_sampling,
                elicitation_callback=self.on_elicitation,
                list_roots_callback=self.on_roots,
            )
        )
        if level and not STATELESS:
            await self.client.set_logging_level(level)
        return self

    async def listen(self, group, uri: str | None = None) -> None:
        if not STATELESS:
            if uri:
                await self.client.subscribe_resource(uri)
            return
        uris = [uri] if uri else []
        stream = await self.stack.enter_async_context(
            self.client.listen(tools_list_changed=True, resource_subscriptions=uris)
        )

        async def read() -> None:
            async for event in stream:
                updated = isinstance(event, ResourceUpdated)
                self.hear("notifications/resources/updated" if updated else "notifications/tools/list_changed", event)

        group.start_soon(read)

    async def text(self, tool: str, **arguments) -> str:
        return (await self.client.call_tool(tool, arguments)).content[0].text


async def check_tools(peer, prefix) -> None:
    names = [tool.name for tool in (await peer.client.list_tools()).tools]
    assert f"{prefix}echo" in names, names
    assert await peer.text(f"{prefix}echo", text="hi") == "hi"


async def check_resources(peer, prefix) -> None:
    ours = lambda uri: not prefix or SERVER in uri  # noqa: E731
    uris = [resource.uri for resource in (await peer.client.list_resources()).resources if resource.name == "text"]
    uri = next(filter(ours, map(str, uris)))
    assert (await peer.client.read_resource(uri)).contents[0].text == "the text"
    templates = (await peer.client.list_resource_templates()).resource_templates
    template = next(filter(ours, [template.uri_template for template in templates]))
    assert (await peer.client.read_resource(template.replace("{id}", "7"))).contents[0].text == "item 7"


async def check_prompts(peer, prefix) -> None:
    names = [prompt.name for prompt in (await peer.client.list_prompts()).prompts]
    assert f"{prefix}greeting" in names, names
    got = await peer.client.get_prompt(f"{prefix}greeting", {"name": "Ada"})
    assert got.messages[0].content.text == "Hello, Ada!", got


async def check_completion(peer, prefix) -> None:
    ref = types.PromptReference(type="ref/prompt", name=f"{prefix}greeting")
    found = await peer.client.complete(ref, {"name": "name", "value": "a"})
    assert found.completion.values == ["ada", "alan"], found


async def check_logging(peer, other, group) -> None:
    await peer.text("log")
    for line in ["one", "two", "three"]:
        assert (await peer.next("notifications/message")).data == line
    await other.text("log")
    other.is_empty()
    peer.is_empty()


async def check_progress(peer, other, group) -> None:
    # This SDK may deliver the result first; the TypeScript clients check the order.
    async def on_progress(progress, total, message) -> None:
        peer.hear("progress", (progress, total))

    await peer.client.call_tool("steps", {}, progress_callback=on_progress)
    assert [await peer.next("progress") for _ in range(3)] == [(1, 3), (2, 3), (3, 3)]
    other.is_empty()


async def check_cancel(peer, other, group) -> None:
    who, begun, scope = str(uuid.uuid4()), anyio.Event(), anyio.CancelScope()

    async def on_progress(progress, total, message) -> None:
        assert message == who
        begun.set()

    async def wait() -> None:
        with scope:
            await peer.client.call_tool("wait", {"who": who}, progress_callback=on_progress)

    group.start_soon(wait)
    with anyio.fail_after(PATIENCE):
        await begun.wait()
    scope.cancel()
    assert who in await other.text("cancelled", who=who)


async def check_list_changed(peer, other, group) -> None:
    await peer.listen(group)
    await other.listen(group)

    async def there() -> bool:
        return "extra" in [tool.name for tool in (await peer.client.list_tools()).tools]

    before = await there()
    for wanted in [not before, before]:
        await peer.text("toggle")
        await peer.next("notifications/tools/list_changed")
        await other.next("notifications/tools/list_changed")
        assert await there() == wanted


async def check_updates(peer, other, group) -> None:
    await peer.listen(group, TEXT)
    await other.listen(group)
    await other.text("update")
    assert str((await peer.next("notifications/resources/updated")).uri) == TEXT
    await peer.text("toggle")
    await other.next("notifications/tools/list_changed")


async def asks(peer, other, tool: str, method: str, answer: str):
    said = await peer.text(tool)
    assert answer in said, said
    asked = await peer.next(method)
    other.is_empty()
    return asked


async def check_sampling(peer, other, group) -> None:
    asked = await asks(peer, other, "sample", "sampling/createMessage", "a sample")
    assert "Say something" in asked.model_dump_json()


async def check_form(peer, other, group) -> None:
    asked = await asks(peer, other, "form", "elicitation/create", "ada")
    assert asked.message == "Who are you?" and "name" in json.dumps(asked.model_dump(mode="json"))


async def check_url(peer, other, group) -> None:
    asked = await asks(peer, other, "url", "elicitation/create", "accept")
    assert (asked.mode, asked.url) == ("url", "https://example.com/sign-in"), asked


async def check_roots(peer, other, group) -> None:
    await asks(peer, other, "roots", "roots/list", "file:///home/ada")


async def check_tasks(peer, other, group) -> None:
    raise Lacks("the Python SDK has no tasks")


OFFERS = {
    "tools": check_tools,
    "resources": check_resources,
    "prompts": check_prompts,
    "completion": check_completion,
}
FEATURES = {
    "logging": check_logging,
    "progress": check_progress,
    "list_changed": check_list_changed,
    "resource updates": check_updates,
    "sampling": check_sampling,
    "elicitation form": check_form,
    "elicitation URL": check_url,
    "roots": check_roots,
    "tasks": check_tasks,
    # Last, because shortly afterwards a request of a shared server may still belong to the cancelled call.
    "cancel": check_cancel,
}


async def run_offer(check) -> None:
    for url, prefix in [(f"{GATEWAY}/s/{SERVER}", ""), (GATEWAY, f"{SERVER}__")]:
        async with AsyncExitStack() as stack:
            await check(await Peer().connect(stack, url), prefix)


async def run_feature(check) -> None:
    url = f"{GATEWAY}/s/{SERVER}"
    async with anyio.create_task_group() as group, AsyncExitStack() as stack:
        peer = await Peer().connect(stack, url, "info")
        other = await Peer().connect(stack, url, "error")
        await check(peer, other, group)
        group.cancel_scope.cancel()


def innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def main() -> None:
    checks = [(name, run_offer, check) for name, check in OFFERS.items()]
    checks += [(name, run_feature, check) for name, check in FEATURES.items()]
    for feature, run, check in checks:
        line = {"feature": feature}
        try:
            with anyio.fail_after(2 * PATIENCE):
                await run(check)
        except BaseException as error:
            why = innermost(error)
            line["lacks" if isinstance(why, Lacks) else "error"] = f"{why}" or type(why).__name__
        print(json.dumps(line), flush=True)


anyio.run(main)
