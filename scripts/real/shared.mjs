// Counts with the official TypeScript client and its default environment, then stays connected until stdin ends:
// shared.mjs PROGRAM.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const client = new Client({ name: "shared-gateway", version: "1" });
await client.connect(new StdioClientTransport({ command: process.argv[2], args: ["stdio"] }));
const result = await client.callTool({ name: "counter__add", arguments: { n: 1 } });
console.log("count", result.content[0].text);
process.stdin.on("end", () => client.close()).resume();
