// The fixtures on the TypeScript SDK v1, which has sessions only: `server-v1.mjs --stdio`, or `server-v1.mjs --http` on a free port.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

import { complete, Events, PROMPTS, readTemplate, RESOURCES, TEMPLATE, tools } from "./fixtures.mjs";

const TOOLS = tools(false);
const RESULTS = {
    "sampling/createMessage": types.CreateMessageResultSchema,
    "elicitation/create": types.ElicitResultSchema,
};

function io(server, extra) {
    const token = extra._meta?.progressToken;
    return {
        push: (method, params) => extra.sendRequest({ method, params }, RESULTS[method]),
        capabilities: server.getClientCapabilities() ?? {},
        missing: (requiredCapabilities) => {
            throw new types.McpError(-32021, "Missing required client capability", { requiredCapabilities });
        },
        log: (level, data) => extra.sendNotification({ method: "notifications/message", params: { level, data } }),
        progress: async (params) => {
            if (token === undefined) return;
            await extra.sendNotification({ method: "notifications/progress", params: { progressToken: token, ...params } });
        },
        announce: { tools: () => server.sendToolListChanged(), prompts: () => server.sendPromptListChanged() },
        closeStream: () => extra.closeSSEStream?.(),
    };
}

function callTool(server, { params }, extra) {
    const tool = TOOLS.find(({ name }) => name === params.name);
    if (!tool) throw new types.McpError(types.ErrorCode.InvalidParams, `Tool ${params.name} not found`);
    return tool.run(params.arguments ?? {}, io(server, extra));
}

function getPrompt(server, { params }, extra) {
    const prompt = PROMPTS[params.name];
    if (!prompt) throw new types.McpError(types.ErrorCode.InvalidParams, `Prompt ${params.name} not found`);
    return prompt[2](params.arguments ?? {}, io(server, extra));
}

function readResource({ params }) {
    const found = RESOURCES.find(({ uri }) => uri === params.uri);
    if (found) {
        const { name, ...contents } = found;
        return { contents: [contents] };
    }
    const id = params.uri.match(/^test:\/\/template\/(.*)\/data$/)?.[1];
    if (id) return readTemplate(params.uri, id);
    throw new types.McpError(-32002, "Resource not found", { uri: params.uri });
}

function make() {
    const capabilities = {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { subscribe: true },
        logging: {},
        completions: {},
    };
    const server = new Server({ name: "everything-typescript-1", version: "1" }, { capabilities });
    const prompts = Object.entries(PROMPTS).map(([name, [description, names]]) => {
        return { name, description, arguments: names.map((name) => ({ name, required: true })) };
    });
    server.setRequestHandler(types.ListToolsRequestSchema, () => ({ tools: TOOLS.map(({ run, ...tool }) => tool) }));
    server.setRequestHandler(types.CallToolRequestSchema, (request, extra) => callTool(server, request, extra));
    server.setRequestHandler(types.ListPromptsRequestSchema, () => ({ prompts }));
    server.setRequestHandler(types.GetPromptRequestSchema, (request, extra) => getPrompt(server, request, extra));
    server.setRequestHandler(types.ListResourcesRequestSchema, () => {
        return { resources: RESOURCES.map(({ uri, name, mimeType }) => ({ uri, name, mimeType })) };
    });
    server.setRequestHandler(types.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: [TEMPLATE] }));
    server.setRequestHandler(types.ReadResourceRequestSchema, readResource);
    server.setRequestHandler(types.SubscribeRequestSchema, () => ({}));
    server.setRequestHandler(types.UnsubscribeRequestSchema, () => ({}));
    server.setRequestHandler(types.CompleteRequestSchema, ({ params }) => {
        return { completion: { values: complete(params.argument.value) } };
    });
    return server;
}

// --- transports ----------------------------------------------------------------------------------------------------

const sessions = new Map();

async function handle(request, response, port) {
    const id = request.headers["mcp-session-id"];
    if (id && !sessions.has(id)) {
        response.writeHead(404, { "content-type": "application/json" });
        response.end(JSON.stringify({ jsonrpc: "2.0", id: null, error: { code: -32001, message: "Session not found" } }));
        return;
    }
    let transport = sessions.get(id);
    if (!transport) {
        const hosts = [`127.0.0.1:${port}`, `localhost:${port}`];
        transport = new StreamableHTTPServerTransport({
            sessionIdGenerator: randomUUID,
            eventStore: new Events(),
            retryInterval: 100,
            enableDnsRebindingProtection: true,
            allowedHosts: hosts,
            allowedOrigins: hosts.map((host) => `http://${host}`),
            onsessioninitialized: (id) => void sessions.set(id, transport),
            onsessionclosed: (id) => void sessions.delete(id),
        });
        await make().connect(transport);
    }
    await transport.handleRequest(request, response);
}

if (process.argv[2] === "--stdio") {
    await make().connect(new StdioServerTransport());
} else {
    const http = createServer((request, response) => handle(request, response, http.address().port));
    http.listen(0, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${http.address().port}/mcp`));
}
