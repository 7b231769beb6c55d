// The fixtures on the TypeScript SDK v2, in both eras: `server-v2.mjs --stdio`, or `server-v2.mjs --http` on a free port.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

import { localhostHostValidation, localhostOriginValidation, toNodeHandler } from "@modelcontextprotocol/node";
import {
    CLIENT_CAPABILITIES_META_KEY, createMcpHandler, createRequestStateCodec, fromJsonSchema, inputRequired, isLegacyRequest, McpServer,
    ResourceTemplate, WebStandardStreamableHTTPServerTransport,
} from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

import { ASKING_PROMPTS, complete, Events, PROMPTS, readTemplate, RESOURCES, SAMPLE, TEMPLATE, tools } from "./fixtures.mjs";

const codec = createRequestStateCodec({ key: "a key of the fixtures, with 32 bytes or more" });
let modern;

function io(mcp, ctx) {
    const request = ctx.mcpReq;
    const token = request._meta?.progressToken;
    const listen = modern && request.envelope ? modern.notify : undefined;
    return {
        push: (method, params) => request.send({ method, params }),
        answers: request.inputResponses,
        input: async (inputRequests, state) => {
            const requestState = state === undefined ? {} : { requestState: await codec.mint(state) };
            return inputRequired({ inputRequests, ...requestState });
        },
        state: () => request.requestState(),
        capabilities: request.envelope?.[CLIENT_CAPABILITIES_META_KEY] ?? mcp.server.getClientCapabilities() ?? {},
        // `McpServer` turns errors of tools into results; a question that the client cannot answer is the way to this error.
        missing: () => inputRequired({ inputRequests: { sample: SAMPLE } }),
        log: (level, data) => request.log(level, data),
        progress: async (params) => {
            if (token === undefined) return;
            await request.notify({ method: "notifications/progress", params: { progressToken: token, ...params } });
        },
        announce: {
            tools: () => (listen ? listen.toolsChanged() : mcp.server.sendToolListChanged()),
            prompts: () => (listen ? listen.promptsChanged() : mcp.server.sendPromptListChanged()),
        },
        closeStream: () => ctx.http?.closeSSE?.(),
    };
}

function make() {
    const capabilities = {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { subscribe: true, listChanged: true },
        logging: {},
        completions: {},
    };
    const options = { capabilities, requestState: { verify: codec.verify } };
    const mcp = new McpServer({ name: "everything-typescript-2", version: "1" }, options);
    for (const { name, description, inputSchema, run } of tools(true)) {
        mcp.registerTool(name, { description, inputSchema: fromJsonSchema(inputSchema) }, (args, ctx) => run(args, io(mcp, ctx)));
    }
    for (const [name, [description, names, run]] of Object.entries({ ...PROMPTS, ...ASKING_PROMPTS })) {
        const properties = Object.fromEntries(names.map((name) => [name, { type: "string" }]));
        const schema = fromJsonSchema({ type: "object", properties, required: names });
        if (names.length) {
            mcp.registerPrompt(name, { description, argsSchema: schema }, (args, ctx) => run(args, io(mcp, ctx)));
        } else {
            mcp.registerPrompt(name, { description }, (ctx) => run({}, io(mcp, ctx)));
        }
    }
    for (const { name, uri, mimeType, ...content } of RESOURCES) {
        mcp.registerResource(name, uri, { mimeType }, () => ({ contents: [{ uri, mimeType, ...content }] }));
    }
    const template = new ResourceTemplate(TEMPLATE.uriTemplate, { list: undefined });
    mcp.registerResource(TEMPLATE.name, template, { mimeType: TEMPLATE.mimeType }, (uri, { id }) => readTemplate(uri.href, id));
    mcp.server.setRequestHandler("resources/subscribe", () => ({}));
    mcp.server.setRequestHandler("resources/unsubscribe", () => ({}));
    mcp.server.setRequestHandler("completion/complete", ({ params }) => {
        return { completion: { values: complete(params.argument.value) } };
    });
    return mcp;
}

// --- transports ----------------------------------------------------------------------------------------------------

const sessions = new Map();

/** Sessions have one transport each; everything else goes to the handler of the stateless era. */
async function route(request) {
    if (!(await isLegacyRequest(request))) return modern.fetch(request);
    const id = request.headers.get("mcp-session-id");
    if (id && !sessions.has(id)) {
        const error = { jsonrpc: "2.0", id: null, error: { code: -32001, message: "Session not found" } };
        return Response.json(error, { status: 404 });
    }
    let transport = sessions.get(id);
    if (!transport) {
        transport = new WebStandardStreamableHTTPServerTransport({
            sessionIdGenerator: randomUUID,
            eventStore: new Events(),
            retryInterval: 100,
            onsessioninitialized: (id) => void sessions.set(id, transport),
            onsessionclosed: (id) => void sessions.delete(id),
        });
        await make().connect(transport);
    }
    return transport.handleRequest(request);
}

if (process.argv[2] === "--stdio") {
    serveStdio(make);
} else {
    modern = createMcpHandler(make, { legacy: "reject" });
    const handle = toNodeHandler({ fetch: route });
    const guards = [localhostHostValidation(), localhostOriginValidation()];
    const http = createServer((request, response) => {
        if (guards.every((guard) => guard(request, response))) handle(request, response);
    });
    http.listen(0, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${http.address().port}/mcp`));
}
