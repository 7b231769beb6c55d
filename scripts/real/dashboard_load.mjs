// Calls a tool at a steady rate until it gets SIGTERM, and then prints the number of calls and of failures as JSON.
//
//   node dashboard_load.mjs ORIGIN TOOL CALLS_PER_SECOND

import { Agent, request } from "node:http";

const [origin, tool, rate] = process.argv.slice(2);
const REVISION = "2026-07-28";
const MAX_IN_FLIGHT = 200;
const agent = new Agent({ keepAlive: true, maxSockets: 8 });
const meta = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": { name: "dashboard-load", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": {},
};
const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool, arguments: {}, _meta: meta } });
const headers = {
    "Content-Type": "application/json",
    "Content-Length": Buffer.byteLength(body),
    Accept: "application/json, text/event-stream",
    "Mcp-Protocol-Version": REVISION,
    "Mcp-Method": "tools/call",
    "Mcp-Name": tool,
};
const counts = { calls: 0, failures: 0 };
let inFlight = 0;

function call() {
    inFlight += 1;
    const finish = (succeeded) => {
        inFlight -= 1;
        counts[succeeded ? "calls" : "failures"] += 1;
    };
    const sent = request(`${origin}/mcp`, { method: "POST", agent, headers }, (response) => {
        response.resume();
        response.on("end", () => finish(response.statusCode === 200));
    });
    sent.on("error", () => finish(false));
    sent.end(body);
}

const started = performance.now();
let begun = 0;
const timer = setInterval(() => {
    const due = ((performance.now() - started) / 1000) * Number(rate);
    while (begun < due && inFlight < MAX_IN_FLIGHT) {
        begun += 1;
        call();
    }
    // What the gateway was too slow for is not made up for later.
    begun = Math.max(begun, Math.floor(due) - MAX_IN_FLIGHT);
}, 5);
process.on("SIGTERM", () => {
    clearInterval(timer);
    const seconds = (performance.now() - started) / 1000;
    console.log(JSON.stringify({ ...counts, rate: Math.round(counts.calls / seconds) }));
    process.exit(0);
});
