// Checks of every feature with the TypeScript SDK v1, which supports sessions only: `client-v1.mjs GATEWAY SERVER session`.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

import { able, equal, Heard, replies, run } from "./checks.mjs";

const NEWS = [
    types.LoggingMessageNotificationSchema,
    types.ToolListChangedNotificationSchema,
    types.ResourceUpdatedNotificationSchema,
];
const QUESTIONS = [types.CreateMessageRequestSchema, types.ListRootsRequestSchema, types.ElicitRequestSchema];

async function connect(url, server) {
    const client = new Client({ name: "matrix", version: "1" }, { capabilities: able });
    const heard = new Heard();
    for (const schema of NEWS) {
        client.setNotificationHandler(schema, ({ method, params }) => heard.push(method, params));
    }
    for (const schema of QUESTIONS) {
        client.setRequestHandler(schema, ({ method, params }) => {
            heard.push(method, params);
            return replies[method] ?? replies[params.mode ?? "form"];
        });
    }
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return {
        heard,
        server,
        client,
        listTools: () => client.listTools(),
        callTool: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
        listResources: () => client.listResources(),
        listTemplates: () => client.listResourceTemplates(),
        readResource: (uri) => client.readResource({ uri }),
        listPrompts: () => client.listPrompts(),
        getPrompt: (name, args) => client.getPrompt({ name, arguments: args }),
        complete: (ref, argument) => client.complete({ ref, argument }),
        wantsLog: (level) => client.setLoggingLevel(level),
        listen: async (uri) => uri && (await client.subscribeResource({ uri })),
    };
}

/** Checks tasks of 2025-11-25: one that completes and one that is cancelled. */
async function tasks({ peer: { client } }) {
    if (!client.getServerCapabilities().tasks) throw { lacks: "the server's SDK has no tasks of 2025-11-25" };
    const begin = async (args) => {
        const request = { method: "tools/call", params: { name: "task", arguments: args, task: { ttl: 60_000 } } };
        return (await client.request(request, types.CreateTaskResultSchema)).task.taskId;
    };
    const { tasks } = client.experimental;
    const done = await begin({});
    equal((await tasks.getTask(done)).status, "completed");
    equal((await tasks.getTaskResult(done, types.CallToolResultSchema)).content[0].text, "a task");
    const forever = await begin({ forever: true });
    await tasks.cancelTask(forever);
    equal((await tasks.getTask(forever)).status, "cancelled");
    const listed = (await tasks.listTasks()).tasks.map((task) => task.taskId);
    equal([done, forever].every((task) => listed.includes(task)), true);
}

await run(connect, tasks);
