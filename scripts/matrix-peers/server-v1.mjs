// The fixtures on the TypeScript SDK v1, which supports sessions only, and tasks of 2025-11-25.

import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

import { answers, call, capabilities, question } from "./fixtures.mjs";

const SCHEMAS = {
    "tools/list": types.ListToolsRequestSchema,
    "resources/list": types.ListResourcesRequestSchema,
    "resources/templates/list": types.ListResourceTemplatesRequestSchema,
    "resources/read": types.ReadResourceRequestSchema,
    "prompts/list": types.ListPromptsRequestSchema,
    "prompts/get": types.GetPromptRequestSchema,
    "completion/complete": types.CompleteRequestSchema,
};
const RESULTS = {
    sample: types.CreateMessageResultSchema,
    form: types.ElicitResultSchema,
    url: types.ElicitResultSchema,
    roots: types.ListRootsResultSchema,
};
const watched = new Set();
const taskStore = new InMemoryTaskStore();
const tasks = { list: {}, cancel: {}, requests: { tools: { call: {} } } };
const server = new Server(
    { name: "matrix-typescript-1", version: "1" },
    { capabilities: { ...capabilities, tasks }, taskStore, taskMessageQueue: new InMemoryTaskMessageQueue() },
);

function io(extra) {
    const progressToken = extra._meta?.progressToken;
    return {
        signal: extra.signal,
        log: (level, data) => server.sendLoggingMessage({ level, data }, extra.sessionId),
        progress: (params) =>
            extra.sendNotification({ method: "notifications/progress", params: { progressToken, ...params } }),
        toolsChanged: () => server.sendToolListChanged(),
        updated: async (uri) => {
            if (watched.has(uri)) await server.sendResourceUpdated({ uri });
        },
        ask: (name) => extra.sendRequest(question(name, false), RESULTS[name]),
    };
}

/** Creates a task that completes immediately, or never if it is to be cancelled. */
async function begin(args, extra) {
    const task = await extra.taskStore.createTask({ ttl: 60_000, pollInterval: 20 });
    if (!args.forever) {
        const result = { content: [{ type: "text", text: "a task" }] };
        await extra.taskStore.storeTaskResult(task.taskId, "completed", result);
    }
    return { task };
}

for (const [method, answer] of Object.entries(answers)) {
    server.setRequestHandler(SCHEMAS[method], (request) => {
        const result = answer(request.params);
        const task = { name: "task", inputSchema: { type: "object" }, execution: { taskSupport: "required" } };
        return method === "tools/list" ? { tools: [...result.tools, task] } : result;
    });
}
server.setRequestHandler(types.CallToolRequestSchema, ({ params }, extra) =>
    params.name === "task" ? begin(params.arguments ?? {}, extra) : call(params.name, params.arguments ?? {}, io(extra)),
);
server.setRequestHandler(types.SubscribeRequestSchema, ({ params }) => (watched.add(params.uri), {}));
server.setRequestHandler(types.UnsubscribeRequestSchema, ({ params }) => (watched.delete(params.uri), {}));
await server.connect(new StdioServerTransport());
