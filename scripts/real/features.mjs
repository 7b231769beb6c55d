// Tests prompts, resources, completion, progress, server requests and updates with the official TypeScript client.
//
// features.mjs TARGET [SERVER]: TARGET is a URL or the program to start. SERVER is the server's name at a gateway that has
// several; without it, TARGET is that one server under its own names. Prints ✓ or ✗ for each; exits 0 if all pass.

import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
    CallToolResultSchema,
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    ListRootsRequestSchema,
    ResourceUpdatedNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";

const [target, server] = process.argv.slice(2);
const name = (own) => (server ? `${server}__${own}` : own);
const uri = (own) => (server ? `toolcrib://${server}/${encodeURIComponent(own)}` : own);
const document = uri("demo://resource/static/document/instructions.md");

const asked = [];
let heard = () => {};

const transport = target.startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args: ["stdio"], env: { ...process.env } });
const client = new Client(
    { name: "real-servers", version: "1" },
    { capabilities: { sampling: {}, elicitation: {}, roots: {} } },
);
client.setRequestHandler(CreateMessageRequestSchema, ({ params }) => {
    asked.push(params.messages[0].content.text);
    return { role: "assistant", model: "whittled", content: { type: "text", text: "a vice, surely" } };
});
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
    asked.push(params.message);
    return { action: "accept", content: { name: "Ada Plane", check: true, integer: 7 } };
});
client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: "file:///srv/bench", name: "the bench" }] }));
client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => heard(params.uri));

// This client drops a call before it handles progress that arrived together with the result, and reports an error.
const late = [];
client.onerror = ({ message }) => {
    const [, notification] = message.match(/unknown token: (.*)$/) ?? [];
    if (notification) late.push(JSON.parse(notification).params);
};

const call = async (own, given = {}, options = undefined) => {
    const result = await client.callTool({ name: name(own), arguments: given }, undefined, options);
    const text = result.content.map((block) => block.text).join("\n");
    assert(!result.isError, text);
    return { ...result, text };
};

const checks = {
    tools: async () => {
        const listed = (await client.listTools()).tools.map((tool) => tool.name);
        assert(listed.includes(name("trigger-sampling-request")), `${listed}`);
        return `${listed.length} of them`;
    },
    prompts: async () => {
        const listed = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
        assert(listed.includes(name("args-prompt")), `${listed}`);
        const got = await client.getPrompt({ name: name("args-prompt"), arguments: { city: "Sheffield" } });
        assert.equal(got.messages[0].content.text, "What's weather in Sheffield?");
        return `${listed.length} of them, ${got.messages[0].content.text}`;
    },
    resources: async () => {
        const listed = (await client.listResources()).resources.map((resource) => resource.uri);
        assert(listed.includes(document), `${listed}`);
        const [got] = (await client.readResource({ uri: document })).contents;
        assert.equal(got.uri, document);
        assert.match(got.text, /Everything Server/);
        return `${listed.length} of them, ${got.uri} has ${got.text.length} characters`;
    },
    "resource templates": async () => {
        const listed = (await client.listResourceTemplates()).resourceTemplates;
        const [got] = (await client.readResource({ uri: uri("demo://resource/dynamic/text/7") })).contents;
        assert.match(got.text, /Resource 7/);
        return `${listed.length} of them, ${got.text.slice(0, 40)}`;
    },
    completion: async () => {
        const { completion } = await client.complete({
            ref: { type: "ref/prompt", name: name("completable-prompt") },
            argument: { name: "name", value: "A" },
            context: { arguments: { department: "Engineering" } },
        });
        assert.deepEqual(completion.values, ["Alice"]);
        return "name=A… is Alice in Engineering";
    },
    "structured content": async () => {
        const { structuredContent } = await call("get-structured-content", { location: "Chicago" });
        assert(structuredContent.conditions);
        return JSON.stringify(structuredContent);
    },
    progress: async () => {
        const seen = [];
        const onprogress = ({ progress, total }) => seen.push(`${progress}/${total}`);
        await call("trigger-long-running-operation", { duration: 1, steps: 4 }, { onprogress });
        late.splice(0).forEach(onprogress);
        assert.deepEqual(seen, ["1/4", "2/4", "3/4", "4/4"]);
        return "1, 2, 3, 4 of 4";
    },
    sampling: async () => {
        asked.length = 0;
        const { text } = await call("trigger-sampling-request", { prompt: "what holds?", maxTokens: 9 });
        assert.match(text, /a vice, surely/);
        assert.equal(asked.length, 1);
        return `asked once (${asked[0]}), answered`;
    },
    elicitation: async () => {
        asked.length = 0;
        const { text } = await call("trigger-elicitation-request");
        assert.match(text, /- Name: Ada Plane/);
        assert.match(text, /- Favorite Integer: 7/);
        assert.equal(asked.length, 1);
        return `asked once (${asked[0]}), answered`;
    },
    roots: async () => {
        assert.match((await call("get-roots-list")).text, /file:\/\/\/srv\/bench/);
        return "the client's own";
    },
    task: async () => {
        const asked = { name: name("simulate-research-query"), arguments: { topic: "planes" } };
        const seen = [];
        for await (const told of client.experimental.tasks.callToolStream(asked, CallToolResultSchema, { task: {} })) {
            seen.push(told);
        }
        const last = seen.at(-1);
        assert.equal(last.type, "result", JSON.stringify(last));
        assert.match(last.result.content[0].text, /Research Report: planes/);
        return `${seen[0].type}, ${seen.length - 2} states, ${last.result.content[0].text.split("\n")[0]}`;
    },
    "resource update": async () => {
        const update = new Promise((resolve) => (heard = resolve));
        await client.subscribeResource({ uri: document });
        const toggle = async () => (await call("toggle-subscriber-updates")).text.startsWith("Started");
        assert((await toggle()) || (await toggle()));
        const seen = await Promise.race([update, new Promise((_, no) => setTimeout(no, 15000, new Error("no update")))]);
        await toggle();
        await client.unsubscribeResource({ uri: document });
        assert.equal(seen, document);
        return `heard ${seen}`;
    },
};

await client.connect(transport);
let failed = 0;
for (const [title, run] of Object.entries(checks)) {
    try {
        console.log(`✓ ${title}: ${await run()}`);
    } catch (error) {
        failed = 1;
        console.log(`✗ ${title}: ${String(error.message ?? error).slice(0, 400)}`);
    }
}
await client.close();
process.exit(failed);
