// A gateway with many servers, many tools and many calls: time until the page works, its memory, and its cost.

import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Gateway, check, minutes, openPage, server, show } from "./dashboard_harness.mjs";

/** Time for which the CPU of the gateway is measured without a page. */
const BASE_SECONDS = 30;
/** Calls per second that the machine must manage for the figures to count. */
const MIN_RATE = 950;

/** A thousand servers with ten tools each, known from their cards, so that none of them is started, and one that is called all the time. */
export async function testMany(browser) {
    const tool = (index) => ({ name: `tool_${index}`, description: `Does the thing number ${index} with a file`, inputSchema: { type: "object", properties: { path: { type: "string" } } } });
    const many = new Gateway("many", "");
    writeFileSync(`${many.home}/card.json`, JSON.stringify({ name: "example/many", description: "many", version: "1.0.0", tools: Array.from({ length: 10 }, (_, index) => tool(index)) }));
    const entries = Array.from({ length: 1000 }, (_, index) => `[servers.s${index}]\ncommand = "false"\ncard = "card.json"\n`);
    writeFileSync(many.configFile, entries.join("") + server("busy", "busy"));
    await many.start();
    await many.run("call", "busy.echo");
    const load = new CallLoad(many, "busy__echo", 1000);
    try {
        const shareBefore = await cpuShare(many, BASE_SECONDS);
        const link = await many.link();
        const page = await openPage(browser);
        const session = await page.context().newCDPSession(page);
        await session.send("Performance.enable");
        const cpuBefore = cpuSeconds(many);
        const started = Date.now();
        await page.goto(link);
        await page.getByText("of 1,001").waitFor();
        const took = Date.now() - started;
        const used = Math.round((cpuSeconds(many) - cpuBefore) * 1000);
        const { metrics } = await session.send("Performance.getMetrics");
        const inPage = Math.round(metrics.find(({ name }) => name === "TaskDuration").value * 1000);
        check(`1,000 servers: the page is interactive after ${took} ms, with ${used} ms of CPU in the gateway and ${inPage} ms of work in the page`, took <= 1000, "more than 1000 ms");
        await page.evaluate(() => (location.hash = "#/tools"));
        const clicked = Date.now();
        await page.getByText("10,001 tools").waitFor();
        check(`10,000 tools: the list is shown after ${Date.now() - clicked} ms`, true);
        const withPage = await watchPage(page, many, session);
        await page.context().close();
        // The cost of calls changes while the history grows: before and after, on average.
        const shareOfCalls = (shareBefore + (await cpuShare(many, BASE_SECONDS))) / 2;
        const share = withPage - shareOfCalls;
        check(`CPU of the gateway for one open page: ${share.toFixed(1)} % of a core, above ${shareOfCalls.toFixed(1)} % for the calls`, share <= 3, `${share.toFixed(1)} %`);
    } finally {
        const { calls, failures, rate } = await load.stop();
        check(`${rate} calls per second: ${calls} calls, ${failures} failed`, rate >= MIN_RATE && !failures, `at least ${MIN_RATE} are needed`);
        await many.stop();
    }
}

/** A process that calls a tool at a steady rate. */
class CallLoad {
    constructor(gateway, tool, rate) {
        const script = fileURLToPath(new URL("dashboard_load.mjs", import.meta.url));
        this.process = spawn("node", [script, gateway.origin, tool, rate], { stdio: ["ignore", "pipe", "inherit"] });
    }

    /** Ends the process and returns what it counted. */
    async stop() {
        let said = "";
        this.process.stdout.on("data", (data) => (said += data));
        const closed = new Promise((resolve) => this.process.once("close", resolve));
        this.process.kill();
        await closed;
        return JSON.parse(said);
    }
}

/** Returns the CPU that a gateway uses in some seconds, in percent of a core. */
async function cpuShare(gateway, seconds) {
    const before = { cpu: cpuSeconds(gateway), time: Date.now() };
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    return ((cpuSeconds(gateway) - before.cpu) / (Date.now() - before.time)) * 100_000;
}

/** Returns the CPU time that a gateway has used. */
function cpuSeconds(gateway) {
    const fields = readFileSync(`/proc/${gateway.process.pid}/stat`, "utf8").split(") ")[1].split(" ");
    return (Number(fields[11]) + Number(fields[12])) / 100;
}

/** Watches the heap of the overview for some minutes. Returns the CPU of the gateway meanwhile, in percent of a core. */
async function watchPage(page, gateway, session) {
    await show(page, "overview");
    const heap = async () => {
        await session.send("HeapProfiler.collectGarbage");
        return (await session.send("Runtime.getHeapUsage")).usedSize / 1e6;
    };
    const before = await heap();
    const share = await cpuShare(gateway, Number(minutes) * 60);
    const growth = (await heap()) - before;
    check(`heap growth in ${minutes} min: ${growth.toFixed(1)} MB`, growth < 30, `${growth.toFixed(1)} MB`);
    return share;
}
