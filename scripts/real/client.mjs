// Lists and calls with the official TypeScript client: client.mjs TARGET, where TARGET is a URL or the program to start.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const target = process.argv[2];
const env = { ...process.env };
const transport = target.startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args: ["stdio"], env });
const client = new Client({ name: "real-servers", version: "1" });
await client.connect(transport);
const tools = (await client.listTools()).tools.map((tool) => tool.name);
for (const wanted of ["everything__echo", "time__get_current_time"]) {
    if (!tools.includes(wanted)) throw new Error(`${wanted} is not among ${tools}`);
}
const echo = await client.callTool({ name: "everything__echo", arguments: { message: "from typescript" } });
const time = await client.callTool({ name: "time__get_current_time", arguments: { timezone: "UTC" } });
console.log(`${tools.length} tools |`, echo.content[0].text, "|", time.content[0].text.replaceAll("\n", " "));
await client.close();
