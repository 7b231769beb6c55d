// A host of MCP Apps in front of a gateway: prints one line with ✓ or ✗ per check.
//
//   node apps.mjs URL legacy|modern HOST_BUNDLE BROWSER
//
// BROWSER may be empty; then no page is rendered.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { getToolUiResourceUri, RESOURCE_MIME_TYPE } from "@modelcontextprotocol/ext-apps/app-bridge";

const [url, era, bundle, browserPath] = process.argv.slice(2);
const capabilities = { extensions: { "io.modelcontextprotocol/ui": { mimeTypes: [RESOURCE_MIME_TYPE] } } };
const servers = {
    budget: "server-budget-allocator",
    copy: "server-budget-allocator",
    monitor: "server-system-monitor",
};
/** The pages that are rendered. The copy has the tools of `budget`, which its page could not tell apart. */
const rendered = ["budget", "monitor"];
let failed = false;

function check(name, passed, details = "") {
    console.log(`${passed ? "✓" : "✗"} ${name}${passed ? "" : `: ${details}`}`);
    failed ||= !passed;
}

function newClient(mode) {
    const versionNegotiation = { mode: mode === "modern" ? "auto" : "legacy" };
    return new Client({ name: "apps-host", version: "1" }, { capabilities, versionNegotiation });
}

async function connectDirectly(server) {
    const client = newClient("legacy");
    const program = new URL(`node_modules/@modelcontextprotocol/${servers[server]}/dist/index.js`, import.meta.url).pathname;
    await client.connect(new StdioClientTransport({ command: "node", args: [program, "--stdio"], stderr: "ignore" }));
    return client;
}

const gateway = newClient(era);
await gateway.connect(new StreamableHTTPClientTransport(new URL(url)));
const tools = (await gateway.listTools()).tools;
const listed = (await gateway.listResources()).resources.map((resource) => resource.uri);

/** Finds the page of a server's first tool that has one, and reads it. */
async function readPage(server) {
    const tool = tools.find((tool) => tool.name.startsWith(`${server}__`) && getToolUiResourceUri(tool));
    const uri = tool && getToolUiResourceUri(tool);
    check(`${server}: the host SDK accepts the address of the page`, uri?.startsWith("ui://"), String(uri));
    const [page] = (await gateway.readResource({ uri })).contents;
    check(`${server}: the page has the address and type that the host expects`,
        page.uri === uri && page.mimeType === RESOURCE_MIME_TYPE, `${page.uri} ${page.mimeType}`);
    check(`${server}: the list has the same address`, listed.includes(uri), `${uri} is not in ${listed}`);
    const direct = await connectDirectly(server);
    const own = (await direct.listTools()).tools.find((own) => getToolUiResourceUri(own));
    const [directPage] = (await direct.readResource({ uri: getToolUiResourceUri(own) })).contents;
    await direct.close();
    check(`${server}: the page is the one of the server`, page.text === directPage.text && page.text.length > 1000,
        `${page.text.length} and ${directPage.text.length} characters`);
    return { tool, uri, page };
}

const pages = {};
for (const server of Object.keys(servers)) {
    pages[server] = await readPage(server);
}
const addresses = new Set(Object.values(pages).map((page) => page.uri));
check("every server has its own address", addresses.size === Object.keys(servers).length, [...addresses].join(" "));

/** Renders a page in a frame of the host page, and waits until it has drawn the result of its tool. */
async function render(browser, origin, server) {
    const { tool, page: content } = pages[server];
    const result = await gateway.callTool({ name: tool.name, arguments: {} });
    check(`${server}: the tool has a result`, !result.isError, JSON.stringify(result).slice(0, 200));
    const page = await browser.newPage();
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    // The page asks for tools by the server's own names, and the host passes them on as they are.
    await page.exposeFunction("callTool", (params) => gateway.callTool(params));
    await page.goto(origin);
    const initialized = await page.evaluate(
        ([html, result]) => globalThis.showApp(html, result), [content.text, result]).catch((error) => String(error));
    check(`${server}: the page is initialized by AppBridge`, initialized === true, String(initialized));
    const frame = page.frames().find((frame) => frame !== page.mainFrame());
    const drawn = await frame.waitForFunction(
        () => document.body.innerText.trim().length > 20 && document.querySelector("canvas, svg, input, table, button") !== null,
        null, { timeout: 20_000 }).then(() => true, (error) => String(error));
    check(`${server}: the page is drawn`, drawn === true && problems.length === 0, `${drawn} ${problems.join("; ")}`);
    await page.close();
}

if (browserPath) {
    const { chromium } = await import("playwright-core");
    const script = await readFile(bundle, "utf8");
    const host = createServer((request, response) => {
        const isScript = request.url === "/host.js";
        response.setHeader("Content-Type", isScript ? "text/javascript" : "text/html");
        response.end(isScript ? script : '<!doctype html><script type="module" src="/host.js"></script>');
    });
    await new Promise((done) => host.listen(0, "127.0.0.1", done));
    const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
    for (const server of rendered) {
        await render(browser, `http://127.0.0.1:${host.address().port}/`, server);
    }
    await browser.close();
    host.close();
}
await gateway.close();
process.exit(failed ? 1 : 0);
