// What the tests of the dashboard share: checks, gateways and pages.

import { execFile, spawn } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import UPNG from "upng-js";

export const [program, browserPath, folder, minutes, images, part] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const serverScript = `${folder}/server.mjs`;
copyFileSync(fileURLToPath(new URL("dashboard_server.mjs", import.meta.url)), serverScript);
/** What the server writes into the description of `markup`, after invisible characters were spelled out. */
export const SHOWN_MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> <b>bold</b> \\u{202e}gnp.exe \\u{1b}[31mred\\u{1b}[0m &lt;";
export const SCREENS = ["overview", "servers", "tools", "calls", "access", "clients", "config"];
/** Whether a check failed. */
export const result = { failed: false };

export function check(name, passed, details = "") {
    console.log(`${passed ? "✓" : "✗"} ${name}${passed ? "" : `: ${details}`}`);
    result.failed ||= !passed;
}

/** Runs a step; an exception is a failed check and does not stop the others. */
export async function step(name, work) {
    try {
        await work();
    } catch (error) {
        check(name, false, String(error.message ?? error).split("\n").slice(0, 6).join(" | "));
    }
}

/** A gateway with its own home folder. */
export class Gateway {
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

export const server = (name, ...args) => `[servers.${name}]\ncommand = "node"\nargs = ${JSON.stringify([serverScript, ...args])}\n`;

/** Opens a page that records what must not happen: requests to other hosts, violations of the policy, errors of scripts. */
export async function openPage(browser, options = {}) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
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

export const heading = (page, title) => page.getByRole("heading", { level: 1, name: title, exact: true }).waitFor({ timeout: 10_000 });

export async function show(page, screen) {
    const path = screen === "overview" ? "" : screen;
    await page.evaluate((hash) => (location.hash = hash), `#/${path}`);
    await heading(page, screen[0].toUpperCase() + screen.slice(1));
    await page.waitForTimeout(400);
}

export async function screenshot(page, name) {
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
export async function findings(page) {
    await page.evaluate(`${axe}; undefined`);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    return violations
        .filter((found) => ["serious", "critical"].includes(found.impact))
        .map((found) => `${found.id}: ${found.nodes.map((node) => node.target.join(" ")).slice(0, 3).join(", ")}`);
}

export const waitFor = async (what, condition, time = 10_000) => {
    const end = Date.now() + time;
    for (;;) {
        const found = await condition();
        if (found) return found;
        if (Date.now() > end) throw new Error(`timeout waiting until ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
};
