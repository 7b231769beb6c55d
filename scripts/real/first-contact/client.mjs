// Lists once with a published JavaScript client, with the settings that its user gets without choosing any.
//
// client.mjs LIBRARY TARGETS: as client.py. It must lie in the folder that has the library's `node_modules`.

import { readFileSync } from "node:fs";

// Each function loads its library and returns one that connects: it gives the names of the tools and a function that disconnects.
const libraries = {
    async "typescript-1"() {
        const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
        const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
        const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
        return sdk(Client, StdioClientTransport, StreamableHTTPClientTransport);
    },
    async "typescript-2"() {
        const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
        const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
        return sdk(Client, StdioClientTransport, StreamableHTTPClientTransport);
    },
    async "ai-sdk"() {
        const { createMCPClient } = await import("@ai-sdk/mcp");
        const { Experimental_StdioMCPTransport: Stdio } = await import("@ai-sdk/mcp/mcp-stdio");
        return async (target) => {
            const client = await createMCPClient({ transport: target.url ? { type: "http", ...target } : new Stdio(target) });
            return [Object.keys(await client.tools()), () => client.close()];
        };
    },
    async "openai-agents-js"() {
        const { MCPServerStdio, MCPServerStreamableHttp } = await import("@openai/agents");
        return async (target) => {
            const server = target.url ? new MCPServerStreamableHttp(target) : new MCPServerStdio(target);
            await server.connect();
            return [(await server.listTools()).map((tool) => tool.name), () => server.close()];
        };
    },
};
const sdk = (Client, Stdio, Http) => async (target) => {
    const client = new Client({ name: "first-contact", version: "1.0.0" });
    await client.connect(target.url ? new Http(new URL(target.url)) : new Stdio(target));
    return [(await client.listTools()).tools.map((tool) => tool.name), () => client.close()];
};

async function contact(name, target) {
    const began = performance.now();
    const report = (what) => {
        const seconds = Math.round((performance.now() - began) / 10) / 100;
        console.log(JSON.stringify({ target: name, seconds, ...what }));
    };
    try {
        const [tools, close] = await list(target);
        report({ tools });
        await close();
    } catch (error) {
        report({ error: `${error.name}: ${error.message}` });
    }
}

const list = await libraries[process.argv[2]]();
console.log("ready");
const targets = JSON.parse(readFileSync(process.argv[3], "utf8"));
await Promise.all(Object.entries(targets).map(([name, target]) => contact(name, target)));
process.exit(0);
