// Drives the dashboard in a browser: prints one line with ✓ or ✗ per check.
//
//   node dashboard.mjs TOOLCRIB BROWSER FOLDER MINUTES IMAGES PART
//
// IMAGES is the folder for screenshots, or empty. PART is `screens`, `scale` or `all`.

import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { promisify } from "node:util";
import { chromium } from "playwright-core";
import {
    Gateway, SCREENS, SHOWN_MARKUP, browserPath, check, findings, folder, heading, openPage, part, result, screenshot, server, show, step, waitFor,
} from "./dashboard_harness.mjs";
import { testMany } from "./dashboard_scale.mjs";

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
    await page.getByRole("button", { name: "Restart", exact: true }).click();
    await waitFor("it is ready again", async () => (await mark.textContent()) === "ready");
    check("restart brings it back", true);
    await page.getByRole("cell", { name: "exited", exact: true }).first().waitFor();
    check("the exit is on the time line of the server", (await page.locator(".timeline .bad").count()) > 0);
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
    await page.getByRole("link", { name: /changing 1 definition differs/ }).click();
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
    const steps = await page.locator(".waterfall th").allTextContents();
    check("calls: the waterfall has rules, cache, start, queue and server", ["Access rules", "Cache", "Start of the server", "Queue", "Server"].every((step) => steps.includes(step)), steps.join());
    const call = await (await fetch(`${gateway.origin}/api/v1/calls/${id}`)).json();
    check("calls: a denied call is found with its rule, by the same id in the API", call.id === id && (await page.locator("main").textContent()).includes(call.rule.replaceAll("`", "")), JSON.stringify(call));
    await show(page, "calls");
    await page.getByLabel("Id of a call").fill(id);
    await page.keyboard.press("Enter");
    await page.getByText("Where the time went").waitFor();
    check("calls: a call is opened by the id that its error has", page.url().endsWith(`/calls/${id}`), page.url());
    const shown = await gateway.run("events", "--call", id);
    check("calls: the command on the page finds the same call", shown.stdout.includes(id) && shown.stdout.includes("denied"), shown.stdout);
    const slow = await (await fetch(`${gateway.origin}/api/v1/calls?tool=wait&limit=1`)).json();
    await page.evaluate((found) => (location.hash = `#/calls/${found}`), slow.calls[0].id);
    await heading(page, "studio.wait");
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

/** A server whose secret is missing, and one that was ejected, before anything called them. */
async function testAttention(page) {
    await show(page, "overview");
    const item = (text) => page.locator(".attention").getByRole("link", { name: text });
    await item(/secret missing-token is not set/).waitFor();
    check("needs attention: a missing secret is named with the command", (await item(/secret missing-token/).textContent()).includes("toolcrib secret set missing-token"));
    await item(/^crashing ejected/).waitFor();
    check("needs attention: an ejected server is named with the reason", (await item(/^crashing/).textContent()).includes("cannot open the database"));
    check("needs attention: a missing secret is one item, and not a missing login", (await item(/^remote/).count()) === 1);
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
    const use = page.getByRole("row", { name: /^local policy.quota 500 per 1 h/ });
    check("limits are shown with their use", (await use.locator("meter").getAttribute("value")) > 0, await page.locator("main").textContent());
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
    await page.getByRole("cell", { name: "reloaded", exact: true }).first().waitFor();
    check("the reload is among the events", true);
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
            if (screen === "servers") await screenshot(page, "phone-servers");
        });
    }
    await page.context().close();
}

async function testDark(browser, gateway) {
    const page = await openPage(browser, { colorScheme: "dark" });
    await page.goto(await gateway.link());
    await heading(page, "Overview");
    await page.locator(".node .spark").first().waitFor();
    await screenshot(page, "dark");
    for (const screen of SCREENS) {
        await show(page, screen);
        const found = await findings(page);
        check(`dark: ${screen} has no serious finding of axe`, !found.length, found.join("; "));
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

const changingFile = `${folder}/definition.txt`;
writeFileSync(changingFile, "Writes a report");
const config = [
    `audit = ${JSON.stringify(`${folder}/audit.jsonl`)}\n`,
    '[policy]\nask = ["studio.erase"]\ndeny = ["studio.fail"]\nquota = { calls = 500, per = "1h" }\n',
    server("studio", "studio"),
    server("changing", "changing", changingFile) + 'pin = "strict"\n',
    server("crashing", "crashing"),
    '[servers.remote]\nurl = "http://127.0.0.1:9/mcp"\nheaders = { Authorization = "Bearer ${secret:missing-token}" }\n',
    '[secrets]\nbackend = "file"\n',
].join("");
async function testScreensOfGateway(browser) {
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
        await step("attention", () => testAttention(page));
        await step("screens", () => testScreens(page));
        await step("access", () => testAccess(page));
        await step("audit", () => testAudit(page));
        check("only requests to the gateway, no violation of the policy, no error of scripts", !page.trouble.length, page.trouble.join("; "));
        await step("keyboard", () => testKeyboard(browser, gateway));
        await step("phone", () => testPhone(browser, gateway));
        await step("dark", () => testDark(browser, gateway));
        await step("rights", () => testRights(browser, gateway));
    } finally {
        await gateway.stop();
    }
}

const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox", "--disable-lcd-text"] });
try {
    if (part !== "scale") {
        await testScreensOfGateway(browser);
        await step("callers", () => testCallers(browser));
    }
    if (part !== "screens") await step("many servers", () => testMany(browser));
} finally {
    await browser.close();
}
process.exit(result.failed ? 1 : 0);
