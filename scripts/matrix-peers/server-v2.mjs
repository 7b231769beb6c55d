// The fixtures on the TypeScript SDK v2: `server-v2.mjs session|stateless|dual|push`, on stdin and stdout.

import { inputRequired, Server } from "@modelcontextprotocol/server";
import { serveStdio, StdioServerTransport } from "@modelcontextprotocol/server/stdio";

import { answers, call, capabilities, question } from "./fixtures.mjs";

const era = process.argv[2];
const watched = new Set();

function io(server, ctx) {
    const stateless = ctx.mcpReq.envelope !== undefined;
    const token = ctx.mcpReq._meta?.progressToken;
    return {
        signal: ctx.mcpReq.signal,
        log: (level, data) => ctx.mcpReq.log(level, data),
        progress: (params) =>
            ctx.mcpReq.notify({ method: "notifications/progress", params: { progressToken: token, ...params } }),
        toolsChanged: () => server.sendToolListChanged(),
        updated: async (uri) => {
            if (stateless || watched.has(uri)) await server.sendResourceUpdated({ uri });
        },
        // In the one way that the era of the request has: by the result, or by a request while the tool runs. `push` does the latter
        // in both eras, and fails in the stateless one.
        ask: async (name) => {
            if (!stateless || era === "push") return ctx.mcpReq.send(question(name, stateless));
            const answer = ctx.mcpReq.inputResponses?.question;
            return answer ?? inputRequired({ inputRequests: { question: question(name, stateless) }, requestState: "asked" });
        },
    };
}

function make({ era }) {
    const server = new Server({ name: "matrix-typescript-2", version: "1" }, { capabilities });
    for (const [method, answer] of Object.entries(answers)) {
        server.setRequestHandler(method, (request) => answer(request.params));
    }
    server.setRequestHandler("tools/call", ({ params }, ctx) => call(params.name, params.arguments ?? {}, io(server, ctx)));
    if (era === "legacy") {
        server.setRequestHandler("resources/subscribe", ({ params }) => (watched.add(params.uri), {}));
        server.setRequestHandler("resources/unsubscribe", ({ params }) => (watched.delete(params.uri), {}));
    }
    return server;
}

if (era === "session") {
    await make({ era: "legacy" }).connect(new StdioServerTransport());
} else {
    serveStdio(make, { legacy: era === "stateless" ? "reject" : "serve" });
}
