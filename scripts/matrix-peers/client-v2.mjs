// Checks of every feature with the TypeScript SDK v2: `client-v2.mjs GATEWAY SERVER session|stateless`.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

import { able, Heard, replies, run } from "./checks.mjs";

const stateless = process.argv[4] === "stateless";
const NEWS = ["message", "tools/list_changed", "resources/updated"].map((name) => `notifications/${name}`);

async function connect(url, server) {
    const versionNegotiation = { mode: stateless ? { pin: "2026-07-28" } : "legacy" };
    const client = new Client({ name: "matrix", version: "1" }, { capabilities: able, versionNegotiation });
    const heard = new Heard();
    let level;
    for (const method of NEWS) client.setNotificationHandler(method, ({ params }) => heard.push(method, params));
    for (const method of ["sampling/createMessage", "roots/list", "elicitation/create"]) {
        client.setRequestHandler(method, ({ params }) => {
            heard.push(method, params);
            return replies[method] ?? replies[params.mode ?? "form"];
        });
    }
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    const meta = () => (level && stateless ? { _meta: { "io.modelcontextprotocol/logLevel": level } } : {});
    return {
        heard,
        server,
        listTools: () => client.listTools(),
        callTool: (name, args, options) => client.callTool({ name, arguments: args, ...meta() }, options),
        listResources: () => client.listResources(),
        listTemplates: () => client.listResourceTemplates(),
        readResource: (uri) => client.readResource({ uri }),
        listPrompts: () => client.listPrompts(),
        getPrompt: (name, args) => client.getPrompt({ name, arguments: args }),
        complete: (ref, argument) => client.complete({ ref, argument }),
        wantsLog: async (wanted) => {
            level = wanted;
            if (!stateless) await client.setLoggingLevel(wanted);
        },
        listen: async (uri) => {
            const uris = uri ? { resourceSubscriptions: [uri] } : {};
            if (stateless) await client.listen({ toolsListChanged: true, ...uris });
            else if (uri) await client.subscribeResource({ uri });
        },
    };
}

await run(connect, async () => {
    throw { lacks: "the TypeScript SDK v2 has no tasks" };
});
