// A small MCP server on stdin and stdout for the test of the dashboard.
//
//   node dashboard_server.mjs studio            a picture, a description full of markup, a tool that needs approval
//   node dashboard_server.mjs changing FILE     a tool whose definition is the text of FILE
//   node dashboard_server.mjs busy              a tool that answers immediately and writes no log
//   node dashboard_server.mjs crashing          exits after a line on stderr

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const [role, file] = process.argv.slice(2);
/** A red square of 8 by 8 pixels. */
const PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGO4o6GBFTEMLQkA3mtBwZYL5QsAAAAASUVORK5CYII=";
export const MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> <b>bold</b> \u202Egnp.exe \u001b[31mred\u001b[0m &lt;";

if (role === "crashing") {
    console.error("cannot open the database <script>alert(1)</script>");
    process.exit(1);
}

const schema = (properties, required = []) => ({ type: "object", properties, required });
const text = (content) => ({ content: [{ type: "text", text: content }] });

const roles = {
    studio: {
        draw_picture: {
            description: "Draws a small picture",
            inputSchema: schema({ color: { type: "string", enum: ["red", "green"], description: "Color of the picture" }, size: { type: "integer" }, labels: { type: "array", items: { type: "string" } } }, ["color"]),
            annotations: { readOnlyHint: true, title: "Draw" },
            run: () => ({ content: [{ type: "image", mimeType: "image/png", data: PICTURE }, { type: "text", text: '{"drawn":true}' }, { type: "resource", resource: { uri: "file:///picture.txt", mimeType: "text/plain", text: MARKUP } }] }),
        },
        markup: { description: MARKUP, inputSchema: schema({}), run: () => text(MARKUP) },
        erase: { description: "Erases everything", inputSchema: schema({ path: { type: "string" } }), run: () => text("erased") },
        wait: { description: "Waits for some milliseconds", inputSchema: schema({ ms: { type: "number" } }), run: ({ ms }) => new Promise((resolve) => setTimeout(() => resolve(text("waited")), ms)) },
        fail: { description: "Reports an error", inputSchema: schema({}), run: () => ({ ...text("it failed"), isError: true }) },
    },
    busy: {
        echo: { description: "Answers", inputSchema: schema({}), run: () => text("done") },
    },
    changing: {
        report: { description: file ? readFileSync(file, "utf8") : "", inputSchema: schema({}), run: () => text("done") },
    },
};
const tools = roles[role];

async function answer({ method, params }) {
    if (method === "initialize") {
        return { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: role, version: "1" } };
    }
    if (method === "ping") return {};
    if (method === "tools/list") {
        return { tools: Object.entries(tools).map(([name, { run, ...definition }]) => ({ name, ...definition })) };
    }
    if (method === "tools/call" && tools[params.name]) {
        if (role !== "busy") console.error(`called ${params.name}`);
        return tools[params.name].run(params.arguments ?? {});
    }
    throw { code: -32601, message: `unknown method ${method}` };
}

for await (const line of createInterface({ input: process.stdin })) {
    const message = JSON.parse(line);
    if (message.id === undefined || !message.method) continue;
    answer(message).then(
        (result) => console.log(JSON.stringify({ jsonrpc: "2.0", id: message.id, result })),
        (error) => console.log(JSON.stringify({ jsonrpc: "2.0", id: message.id, error })),
    );
}
