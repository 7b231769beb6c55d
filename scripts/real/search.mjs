// Finds, describes and calls tools in search mode with the official TypeScript client: search.mjs TARGET, where TARGET is a URL or the
// program to start.

import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const target = process.argv[2];
const env = { ...process.env };
const transport = target.startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args: ["stdio"], env });
const client = new Client({ name: "search", version: "1" });
// This client drops a call before it handles progress that arrived together with the result, and reports an error.
const late = [];
client.onerror = ({ message }) => {
    const [, notification] = message.match(/unknown token: (.*)$/) ?? [];
    if (notification) late.push(JSON.parse(notification).params);
};
await client.connect(transport);
const call = (name, args, options) =>
    client.callTool({ name: "call_tool", arguments: { name, arguments: args } }, undefined, options);

const listed = (await client.listTools()).tools.map((tool) => tool.name);
assert.deepEqual(listed, ["find_tools", "describe_tools", "call_tool"]);
const found = await client.callTool({ name: "find_tools", arguments: { query: "repeat a message back to me" } });
const name = found.structuredContent.tools[0].name;
const described = await client.callTool({ name: "describe_tools", arguments: { names: [name] } });
const argument = described.structuredContent.tools[0].inputSchema.required[0];
const echo = await call(name, { [argument]: "from typescript" });

const direct = await client.callTool({ name: "everything__get-tiny-image", arguments: {} });
assert.deepEqual(await call("everything__get-tiny-image", {}), direct);
const steps = [];
const onprogress = (progress) => steps.push(progress.progress);
await call("everything__trigger-long-running-operation", { duration: 0.4, steps: 4 }, { onprogress });
late.forEach(onprogress);
assert.deepEqual(steps, [1, 2, 3, 4]);
const denied = await call("everything__get-env", {}).then((result) => result.content[0].text, String);
assert.match(denied, /policy\.deny/);
console.log(`${name} |`, echo.content[0].text, "| image, progress, denial");
await client.close();
