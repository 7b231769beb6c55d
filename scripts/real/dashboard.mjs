// Drives the dashboard in a browser: prints one line with ✓ or ✗ per check.
//
//   node dashboard.mjs TOOLCRIB BROWSER FOLDER MINUTES IMAGES
//
// IMAGES is the folder for screenshots, or empty.

import { execFile, spawn } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { chromium } from "playwright-core";
import UPNG from "upng-js";

const [program, browserPath, folder, minutes, images] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const serverScript = `${folder}/server.mjs`;
copyFileSync(fileURLToPath(new URL("dashboard_server.mjs", import.meta.url)), serverScript);
/** What the server writes into the description of `markup`, after invisible characters were spelled out. */
const SHOWN_MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> <b>bold</b> \\u{202e}gnp.exe \\u{1b}[31mred\\u{1b}[0m &lt;";
const SCREENS = ["overview", "servers", "tools", "calls", "access", "clients", "config"];
let failed = false;

function check(name, passed, details = "") {
    console.log(`${passed ? "✓" : "✗"} ${name}${passed ? "" : `: ${details}`}`);
    failed ||= !passed;
}

/** Runs a step; an exception is a failed check and does not stop the others. */
async function step(name, work) {
    try {
        await work();
    } catch (error) {
        check(name, false, String(error.message ?? error).split("\n").slice(0, 6).join(" | "));
    }
}

/** A gateway with its own home folder. */
class Gateway {
    constructor(name, config) {
        this.home = `${folder}/${name}`;
        mkdirSync(this.home, { recursive: true });
        this.configFile = `${this.home}/config.toml`;
        writeFileSync(this.configFile, config);
        this.env = { ...process.env, TOOLCRIB_HOME: this.home };
    }

    async start() {
        this.process = spawn(program, ["serve", "--listen", "127.0.0.1:0"], { env: this.env, stdio: ["ignore", "ignore", "pipe"] });
        let said = "";
        this.origin = await new Promise((resolve, reject) => {
            this.process.stderr.on("data", (data) => {
                said += data;
                const found = said.match(/listening on (http:\/\/[^/]+)\/mcp/);
                if (found) resolve(found[1]);
            });
            this.process.on("exit", () => reject(new Error(`the gateway exited: ${said}`)));
        });
        return this;
    }

    async run(...args) {
        return promisify(execFile)(program, args, { env: this.env });
    }

    /** Returns a link that logs in once. */
    async link() {
        return (await this.run("ui", "--no-browser")).stdout.trim();
    }

    async status() {
        return (await fetch(`${this.origin}/api/v1/status`)).json();
    }

    async stop() {
        if (!this.process) return;
        const exited = new Promise((resolve) => this.process.once("exit", resolve));
        this.process.kill();
        await exited;
    }
}

const server = (name, ...args) => `[servers.${name}]\ncommand = "node"\nargs = ${JSON.stringify([serverScript, ...args])}\n`;

/** Opens a page that records what must not happen: requests to other hosts, violations of the policy, errors of scripts. */
async function openPage(browser, options = {}) {
    const context = await browser.newContext({ viewport: { width: 960, height: 600 }, ...options });
    const page = await context.newPage();
    page.trouble = [];
    page.on("request", (request) => {
        const url = new URL(request.url());
        const isOwn = url.hostname === "127.0.0.1" || ["data:", "blob:"].includes(url.protocol);
        if (!isOwn) page.trouble.push(`request to ${url.host}`);
    });
    page.on("pageerror", (error) => page.trouble.push(`error: ${error.message}`));
    page.on("dialog", (dialog) => page.trouble.push(`dialog: ${dialog.message()}`));
    page.on("console", (message) => {
        const isExpected = /status of (401|403|404)/.test(message.text());
        if (message.type() === "error" && !isExpected) page.trouble.push(message.text());
    });
    return page;
}

const heading = (page, title) => page.getByRole("heading", { level: 1, name: title, exact: true }).waitFor({ timeout: 10_000 });

async function show(page, screen) {
    const path = screen === "overview" ? "" : screen;
    await page.evaluate((hash) => (location.hash = hash), `#/${path}`);
    await heading(page, screen[0].toUpperCase() + screen.slice(1));
    await page.waitForTimeout(400);
}

async function screenshot(page, name) {
    if (!images) return;
    mkdirSync(images, { recursive: true });
    const close = page.locator(".notice button");
    if (await close.isVisible()) await close.click();
    writeFileSync(`${images}/dashboard-${name}.png`, reduce(await page.screenshot()));
}

/** Reduces the colors of an image, so that it is small in the repository. */
function reduce(png) {
    const image = UPNG.decode(png);
    return Buffer.from(UPNG.encode(UPNG.toRGBA8(image), image.width, image.height, 64));
}

/** Returns the findings of axe that are serious or critical. */
async function findings(page) {
    await page.evaluate(`${axe}; undefined`);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    return violations
        .filter((found) => ["serious", "critical"].includes(found.impact))
        .map((found) => `${found.id}: ${found.nodes.map((node) => node.target.join(" ")).slice(0, 3).join(", ")}`);
}

const waitFor = async (what, condition, time = 10_000) => {
    const end = Date.now() + time;
    for (;;) {
        const found = await condition();
        if (found) return found;
        if (Date.now() > end) throw new Error(`timeout waiting until ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
};

async function testLogin(browser, gateway) {
    const link = await gateway.link();
    const page = await openPage(browser);
    await page.goto(link);
    await heading(page, "Overview");
    check("login: the code is removed from the address", !page.url().includes("code="), page.url());
    const cookies = await page.context().cookies();
    const cookie = cookies.find((found) => found.name.startsWith("toolcrib_"));
    check("login: the cookie is HttpOnly and SameSite=Strict", cookie?.httpOnly && cookie.sameSite === "Strict", JSON.stringify(cookies));
    const again = await openPage(browser);
    await again.goto(link);
    await again.getByRole("link", { name: "Overview" }).waitFor();
    check("login: a code is valid once", await again.getByText("You are not logged in").isVisible());
    await again.context().close();
    return page;
}

async function testScreens(page) {
    for (const screen of SCREENS) {
        await step(`screen ${screen}`, async () => {
            await show(page, screen);
            const found = await findings(page);
            check(`screen ${screen}: no serious finding of axe`, !found.length, found.join("; "));
            await screenshot(page, screen);
        });
    }
}

async function testKill(page, gateway) {
    await page.evaluate(() => (location.hash = "#/servers/studio"));
    await heading(page, "studio");
    const { servers } = await gateway.status();
    const { pid } = servers.find((found) => found.name === "studio");
    const mark = page.locator(".heading .state");
    await waitFor("it is shown as ready", async () => (await mark.textContent()) === "ready");
    const started = Date.now();
    process.kill(pid, "SIGKILL");
    await waitFor("the page shows the exit", async () => (await mark.textContent()) !== "ready" || !(await page.getByText(String(pid), { exact: true }).count()));
    const took = Date.now() - started;
    check(`a killed server is shown within 2 s (${took} ms)`, took <= 2000, `${took} ms`);
    await page.getByRole("button", { name: "restart", exact: true }).click();
    await waitFor("it is ready again", async () => (await mark.textContent()) === "ready");
    check("restart brings it back", true);
    await page.evaluate(() => (location.hash = "#/servers/studio/stderr"));
    await page.getByRole("log").waitFor();
    check("stderr is shown", true);
}

async function testTools(page, gateway) {
    await show(page, "tools");
    await page.keyboard.press("/");
    await page.keyboard.type("draw a picture");
    const first = page.locator("tbody tr").first();
    await waitFor("the search answers", async () => (await first.textContent()).includes("studio__draw_picture"));
    check("tools: the search of the gateway finds the tool first", true);
    await page.evaluate(() => (location.hash = "#/tools/studio__draw_picture"));
    await heading(page, "studio__draw_picture");
    await page.getByRole("button", { name: "Call", exact: true }).click();
    check("try it: a required argument is asked for", await page.getByText("a value is required").isVisible());
    await page.getByLabel("color (required)").selectOption("red");
    await page.getByLabel("size").fill("8");
    await page.getByRole("button", { name: "Call", exact: true }).click();
    const image = page.locator(".result img");
    await image.waitFor();
    const width = await waitFor("the image is decoded", () => image.evaluate((node) => node.naturalWidth));
    check("try it: an image is rendered", width === 8, `${width} pixels wide`);
    check("try it: text and resources are shown as text", (await page.locator(".result").textContent()).includes(SHOWN_MARKUP));
    const command = await page.locator(".code code").first().textContent();
    check("copy as: the command line has the arguments", command === `toolcrib call studio__draw_picture --args '{"color":"red","size":8}'`, command);
    const copied = await gateway.run("call", "studio__draw_picture", "--args", '{"color":"red","size":8}', "--json");
    check("copy as: the command works", copied.stdout.includes("image/png"));
    await page.getByLabel("Language").selectOption("curl");
    const curl = await page.locator(".code code").first().textContent();
    const answered = await promisify(execFile)("sh", ["-c", curl]);
    check("copy as: the curl command works", answered.stdout.includes("image/png"), answered.stdout.slice(0, 200));
    const found = await findings(page);
    check("one tool: no serious finding of axe", !found.length, found.join("; "));
    await screenshot(page, "tool");
}

async function testMarkup(page) {
    await page.evaluate(() => (location.hash = "#/tools/studio__markup"));
    await heading(page, "studio__markup");
    const description = page.locator(".description");
    check("markup of a server is shown as text", (await description.textContent()) === SHOWN_MARKUP, await description.textContent());
    check("markup of a server makes no elements", (await description.locator("*").count()) === 0);
    check("markup of a server runs nothing", (await page.title()).startsWith("studio__markup"), await page.title());
}

async function testApproval(page, gateway) {
    const refused = await gateway.run("call", "studio.erase", "path=/tmp/x", "--no-input").then(() => null, (error) => error);
    check("a call that needs approval is refused first", refused?.code === 7, `exit ${refused?.code}`);
    await show(page, "overview");
    await page.getByRole("link", { name: /asks to call studio.erase/ }).click();
    await heading(page, "Calls");
    await page.getByRole("button", { name: "Approve this call" }).click();
    await page.getByText("studio.erase: approved").waitFor();
    const approved = await gateway.run("call", "studio.erase", "path=/tmp/x", "--no-input");
    check("an approval given on the page lets the call run", approved.stdout.includes("erased"), approved.stdout);
}

async function testChangedTool(page, gateway, file) {
    await gateway.run("tools", "--wait");
    await gateway.run("approve", "changing", "--yes").catch(() => gateway.run("approve", "changing"));
    writeFileSync(file, "Writes a report and sends it to <b>somewhere else</b>");
    await gateway.run("restart", "changing");
    await page.evaluate(() => (location.hash = "#/"));
    await page.getByRole("link", { name: /changing: 1 definition differs/ }).click();
    await page.getByText("Definitions that differ").waitFor();
    const removed = await page.locator(".diff .removed").first().textContent();
    const added = await page.locator(".diff .added").first().textContent();
    check("a changed tool is shown with its differences", removed.includes("Writes a report") && added.includes("<b>somewhere else</b>"), `${removed} ${added}`);
    await screenshot(page, "changed-tool");
    await page.getByRole("button", { name: "Approve these definitions" }).click();
    await page.getByText("All definitions are as they were approved").waitFor();
    const called = await gateway.run("call", "changing.report");
    check("a changed tool that was approved on the page can be called", called.stdout.includes("done"), called.stdout);
}

/** Finds a failed call on the page, and by its id in the API. */
async function testCalls(page, gateway) {
    const history = await (await fetch(`${gateway.origin}/api/v1/calls?limit=1000`)).json();
    if (!history.calls?.[0]?.duration_ms) {
        console.log("skipped: history and clients, because this gateway has no `/api/v1/calls`");
        return;
    }
    await show(page, "calls");
    const rows = page.locator("tbody tr");
    const before = await rows.count();
    await gateway.run("call", "studio.wait", "ms:=30");
    await waitFor("the live list shows a new call", async () => (await rows.count()) > before || (await rows.first().textContent()).includes("studio.wait"));
    check("calls: a new call appears in the live list", true);
    await gateway.run("call", "studio.fail").catch(() => {});
    await page.getByRole("button", { name: "History" }).click();
    await page.getByLabel("outcome").selectOption("denied");
    await page.locator("tbody tr a").first().click();
    await page.getByText("Where the time went").waitFor();
    const id = await page.locator("dd code").first().textContent();
    const call = await (await fetch(`${gateway.origin}/api/v1/calls/${id}`)).json();
    check("calls: a denied call is found with its rule, by the same id in the API", call.id === id && (await page.locator("main").textContent()).includes(call.rule), JSON.stringify(call));
    await screenshot(page, "call");
    await show(page, "clients");
    await page.getByText("toolcrib-dashboard").first().waitFor();
    check("clients: the page itself is among the clients", true);
    await page.evaluate(() => (location.hash = "#/servers/studio"));
    await page.getByText("Durations of the").waitFor();
    await page.getByRole("cell", { name: "started", exact: true }).first().waitFor();
    check("servers: a histogram of durations and the events are shown", true);
    await screenshot(page, "server");
}

async function testAccess(page) {
    await show(page, "access");
    await page.getByLabel("Tool, as SERVER.TOOL").fill("studio.wait");
    await page.getByRole("button", { name: "Decide" }).click();
    await page.getByText("allowed", { exact: true }).waitFor();
    await page.getByLabel("Tool, as SERVER.TOOL").fill("studio.fail");
    await page.getByRole("button", { name: "Decide" }).click();
    await page.getByText("denied", { exact: true }).waitFor();
    const text = await page.locator(".decision").textContent();
    check("the simulator names the rule with file and line", /config\.toml:\d+/.test(text), text);
    await screenshot(page, "access");
}

async function testAudit(page) {
    await show(page, "config");
    await page.getByRole("button", { name: "Verify the audit file" }).click();
    await page.getByText("intact", { exact: true }).waitFor();
    check("the audit file is verified", true);
    await page.getByRole("button", { name: "Reload" }).click();
    await page.getByText("the config was read again").waitFor();
    check("the config is reloaded", true);
}

async function testKeyboard(browser, gateway) {
    const page = await openPage(browser);
    await page.goto(await gateway.link());
    await heading(page, "Overview");
    const press = async (key, times = 1) => {
        for (let i = 0; i < times; i += 1) await page.keyboard.press(key);
    };
    const focused = () => page.evaluate(() => document.activeElement.textContent.trim());
    await page.keyboard.press("Tab");
    check("keyboard: the first stop skips the navigation", (await focused()) === "Skip to the content", await focused());
    for (let i = 0; i < 12 && (await focused()) !== "Tools"; i += 1) await press("Tab");
    await press("Enter");
    await heading(page, "Tools");
    await press("/");
    await page.keyboard.type("waits for milliseconds");
    await waitFor("the search answers", async () => (await page.locator("tbody tr").first().textContent()).includes("studio__wait"));
    for (let i = 0; i < 6 && (await focused()) !== "studio__wait"; i += 1) await press("Tab");
    await press("Enter");
    await heading(page, "studio__wait");
    await page.getByRole("textbox", { name: "ms" }).waitFor();
    for (let i = 0; i < 8 && !(await page.evaluate(() => document.activeElement.name === "ms")); i += 1) await press("Tab");
    await page.keyboard.type("5");
    await press("Enter");
    await page.getByText("waited").waitFor();
    check("keyboard: a tool is found and called without a mouse", true);
    const outline = await page.evaluate(() => {
        document.querySelector("nav a").focus();
        return getComputedStyle(document.activeElement).outlineStyle;
    });
    check("keyboard: the focus is visible", outline !== "none", outline);
    check("keyboard: nothing is wrong", !page.trouble.length, page.trouble.join("; "));
    await page.context().close();
}

async function testPhone(browser, gateway) {
    const page = await openPage(browser, { viewport: { width: 375, height: 700 }, colorScheme: "dark", isMobile: true, hasTouch: true });
    await page.goto(await gateway.link());
    await heading(page, "Overview");
    for (const screen of SCREENS) {
        await step(`phone ${screen}`, async () => {
            await show(page, screen);
            const width = await page.evaluate(() => document.scrollingElement.scrollWidth);
            check(`375 px and dark: ${screen} fits`, width <= 375, `${width} px wide`);
            const found = await findings(page);
            check(`375 px and dark: ${screen} has no serious finding of axe`, !found.length, found.join("; "));
            if (screen === "overview") await screenshot(page, "phone");
        });
    }
    await page.context().close();
}

async function testRights(browser, gateway) {
    const page = await openPage(browser);
    await page.goto(`${gateway.origin}/`);
    await page.getByText("You are not logged in").waitFor();
    check("bare loopback: the page says that nothing can be approved", true);
    for (const path of ["/api/v1/calls/x/approve", "/api/v1/servers/changing/approve?seal=x", "/api/v1/ui", "/api/v1/login"]) {
        const { status } = await fetch(gateway.origin + path, { method: "POST" });
        check(`bare loopback: POST ${path} is refused`, [401, 403].includes(status), String(status));
    }
    await page.context().close();
}

async function testCallers(browser) {
    const tokens = { ops: "ops-token-123456789", dev: "dev-token-123456789" };
    const callers = `[callers.ops]\ntoken = "${tokens.ops}"\nadmin = true\n[callers.dev]\ntoken = "${tokens.dev}"\nallow = ["studio.wait"]\n`;
    const gateway = await new Gateway("callers", server("studio", "studio") + callers).start();
    try {
        const page = await openPage(browser);
        await page.goto(`${gateway.origin}/`);
        const logIn = async (token) => {
            await page.getByLabel(/token of a caller/).fill(token);
            await page.getByRole("button", { name: "Log in" }).click();
        };
        const found = await findings(page);
        check("login form: no serious finding of axe", !found.length, found.join("; "));
        await logIn("wrong-token");
        await page.getByText("this is not the token of a caller").waitFor();
        check("callers: a wrong token is refused", true);
        await logIn(tokens.dev);
        await heading(page, "Tools");
        await page.getByText("studio__wait").waitFor();
        const links = await page.locator("nav li a").allTextContents();
        check("callers: a caller without admin sees its tools and calls only", links.map((text) => text.trim()).join() === "Tools,Calls" && (await page.locator("tbody tr").count()) === 1, links.join());
        await page.getByRole("button", { name: "Log out" }).click();
        await logIn(tokens.ops);
        await page.getByRole("link", { name: "Access" }).waitFor();
        check("callers: an admin sees everything", true);
        await page.evaluate(() => (location.hash = "#/config"));
        await heading(page, "Config");
        await page.getByText("callers.ops.admin").waitFor();
        check("callers: no token is shown", !(await page.textContent("body")).includes("token-1234"));
        await page.context().close();
    } finally {
        await gateway.stop();
    }
}

/** A thousand servers with ten tools each, known from their cards, so that none of them is started, and one that is called all the time. */
async function testMany(browser) {
    const tool = (index) => ({ name: `tool_${index}`, description: `Does the thing number ${index} with a file`, inputSchema: { type: "object", properties: { path: { type: "string" } } } });
    const many = new Gateway("many", "");
    writeFileSync(`${many.home}/card.json`, JSON.stringify({ name: "example/many", description: "many", version: "1.0.0", tools: Array.from({ length: 10 }, (_, index) => tool(index)) }));
    const entries = Array.from({ length: 1000 }, (_, index) => `[servers.s${index}]\ncommand = "false"\ncard = "card.json"\n`);
    writeFileSync(many.configFile, entries.join("") + server("busy", "busy"));
    await many.start();
    await many.run("call", "busy.echo");
    const load = new CallLoad(many, "busy__echo", 1000);
    try {
        const idleShare = await cpuShare(many, 20);
        const link = await many.link();
        const page = await openPage(browser);
        const session = await page.context().newCDPSession(page);
        await session.send("Performance.enable");
        const cpuBefore = cpuSeconds(many);
        const started = Date.now();
        await page.goto(link);
        await page.getByText("of 1001").waitFor();
        const took = Date.now() - started;
        const used = Math.round((cpuSeconds(many) - cpuBefore) * 1000);
        const { metrics } = await session.send("Performance.getMetrics");
        const inPage = Math.round(metrics.find(({ name }) => name === "TaskDuration").value * 1000);
        check(`1,000 servers: the page is interactive after ${took} ms, with ${used} ms of CPU in the gateway and ${inPage} ms of work in the page`, took <= 1000, "more than 1000 ms");
        await page.evaluate(() => (location.hash = "#/tools"));
        const clicked = Date.now();
        await page.getByText("10,001 tools").waitFor();
        check(`10,000 tools: the list is shown after ${Date.now() - clicked} ms`, true);
        await watchMemory(page, many, session, idleShare);
        await page.context().close();
    } finally {
        const { calls, failures, rate } = await load.stop();
        check(`${rate} calls per second: ${calls} calls, ${failures} failed`, calls > 0 && !failures, `${failures} failed`);
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

/** Watches the heap of the page and the CPU of the gateway for some minutes. Without the page, the gateway uses `idleShare`. */
async function watchMemory(page, gateway, session, idleShare) {
    await show(page, "overview");
    const heap = async () => {
        await session.send("HeapProfiler.collectGarbage");
        return (await session.send("Runtime.getHeapUsage")).usedSize / 1e6;
    };
    const before = await heap();
    const share = (await cpuShare(gateway, Number(minutes) * 60)) - idleShare;
    const growth = (await heap()) - before;
    check(`heap growth in ${minutes} min: ${growth.toFixed(1)} MB`, growth < 30, `${growth.toFixed(1)} MB`);
    check(`CPU of the gateway for one open page: ${share.toFixed(1)} % of a core, above ${idleShare.toFixed(1)} % for the calls`, share <= 3, `${share.toFixed(1)} %`);
}

const changingFile = `${folder}/definition.txt`;
writeFileSync(changingFile, "Writes a report");
const config = [
    `audit = ${JSON.stringify(`${folder}/audit.jsonl`)}\n`,
    '[policy]\nask = ["studio.erase"]\ndeny = ["studio.fail"]\n',
    server("studio", "studio"),
    server("changing", "changing", changingFile) + 'pin = "strict"\n',
    server("crashing", "crashing"),
    '[limits]\nlisting-wait = "10s"\n',
].join("");
const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox", "--disable-lcd-text"] });
const gateway = await new Gateway("main", config).start();
try {
    await gateway.run("tools", "--wait").catch(() => {});
    await gateway.run("call", "studio.wait", "ms:=20");
    let page = null;
    await step("login", async () => (page = await testLogin(browser, gateway)));
    await step("a killed server", () => testKill(page, gateway));
    await step("tools", () => testTools(page, gateway));
    await step("markup", () => testMarkup(page));
    await step("approval", () => testApproval(page, gateway));
    await step("changed tool", () => testChangedTool(page, gateway, changingFile));
    await step("calls", () => testCalls(page, gateway));
    await step("screens", () => testScreens(page));
    await step("access", () => testAccess(page));
    await step("audit", () => testAudit(page));
    check("only requests to the gateway, no violation of the policy, no error of scripts", !page.trouble.length, page.trouble.join("; "));
    await step("keyboard", () => testKeyboard(browser, gateway));
    await step("phone", () => testPhone(browser, gateway));
    await step("rights", () => testRights(browser, gateway));
    await step("callers", () => testCallers(browser));
    await step("many servers", () => testMany(browser));
} finally {
    await gateway.stop();
    await browser.close();
}
process.exit(failed ? 1 : 0);
