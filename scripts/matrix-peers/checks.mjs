// Checks of every feature for both TypeScript SDKs. `connect(url)` returns a peer that hides the differences between the
// SDKs, with `heard`, the messages that this client received, in order.

import { randomUUID } from "node:crypto";

import { TEXT } from "./fixtures.mjs";

export const PATIENCE = 10_000;
export const able = { sampling: {}, elicitation: { form: {}, url: {} }, roots: {} };

/** Rejects if the promise takes too long. */
async function within(time, what, promise) {
    let timer;
    const late = new Promise((_, reject) => (timer = setTimeout(reject, time, new Error(`no ${what} in time`))));
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** The messages that a client received, as an awaitable queue. */
export class Heard {
    #waiting = [];
    #messages = [];

    push(method, params) {
        const next = this.#waiting.shift();
        next ? next({ method, params }) : this.#messages.push({ method, params });
    }

    /** Returns the next message, which must have this method. */
    async next(method) {
        const next = () => within(PATIENCE, method, new Promise((resolve) => this.#waiting.push(resolve)));
        const message = this.#messages.shift() ?? (await next());
        equal(message.method, method);
        return message.params;
    }

    isEmpty() {
        equal(this.#messages, []);
    }
}

/** Responses to every kind of server request. */
export const replies = {
    "sampling/createMessage": { role: "assistant", model: "none", content: { type: "text", text: "a sample" } },
    "roots/list": { roots: [{ uri: "file:///home/ada", name: "ada" }] },
    form: { action: "accept", content: { name: "ada" } },
    url: { action: "accept" },
};

export function equal(is, wanted) {
    if (JSON.stringify(is) !== JSON.stringify(wanted)) {
        throw new Error(`${JSON.stringify(is)} instead of ${JSON.stringify(wanted)}`);
    }
}

function holds(what, value) {
    if (!value) throw new Error(`not so: ${what}`);
}

const text = (result) => result.content[0].text;

/** One check per feature. A view is the server's own endpoint, or the common endpoint with a name prefix. */
const offers = {
    async tools({ peer, prefix }) {
        const names = (await peer.listTools()).tools.map((tool) => tool.name);
        holds(`echo in ${names}`, names.includes(`${prefix}echo`));
        equal(text(await peer.callTool(`${prefix}echo`, { text: "hi" })), "hi");
    },
    async resources({ peer, own }) {
        // At the common endpoint several servers have the same URIs, so each URI contains its server's name.
        const ours = (uri) => own || uri.includes(peer.server);
        const uri = (await peer.listResources()).resources.map((resource) => resource.uri).find(ours);
        equal((await peer.readResource(uri)).contents[0].text, "the text");
        const templates = (await peer.listTemplates()).resourceTemplates.map((template) => template.uriTemplate);
        equal((await peer.readResource(templates.find(ours).replace("{id}", "7"))).contents[0].text, "item 7");
    },
    async prompts({ peer, prefix }) {
        const names = (await peer.listPrompts()).prompts.map((prompt) => prompt.name);
        holds(`greeting in ${names}`, names.includes(`${prefix}greeting`));
        const got = await peer.getPrompt(`${prefix}greeting`, { name: "Ada" });
        equal(got.messages[0].content.text, "Hello, Ada!");
    },
    async completion({ peer, prefix }) {
        const found = await peer.complete({ type: "ref/prompt", name: `${prefix}greeting` }, { name: "name", value: "a" });
        equal(found.completion.values, ["ada", "alan"]);
    },
};

async function asks(tool, method, answer, { peer, other }) {
    const said = text(await peer.callTool(tool, {}));
    holds(`${answer} in ${said}`, said.includes(answer));
    const asked = await peer.heard.next(method);
    other.heard.isEmpty();
    return asked;
}

const features = {
    async logging({ peer, other }) {
        await peer.wantsLog("info");
        await other.wantsLog("error");
        await peer.callTool("log", {});
        for (const line of ["one", "two", "three"]) equal((await peer.heard.next("notifications/message")).data, line);
        await other.callTool("log", {});
        other.heard.isEmpty();
        peer.heard.isEmpty();
    },
    async progress({ peer, other }) {
        const steps = [];
        await peer.callTool("steps", {}, { onprogress: ({ progress, total }) => steps.push([progress, total]) });
        equal(steps, [[1, 3], [2, 3], [3, 3]]);
        other.heard.isEmpty();
    },
    async list_changed({ peer, other }) {
        await peer.listen();
        await other.listen();
        const there = async () => (await peer.listTools()).tools.some((tool) => tool.name === "extra");
        for (const wanted of [!(await there()), await there()]) {
            await peer.callTool("toggle", {});
            await peer.heard.next("notifications/tools/list_changed");
            await other.heard.next("notifications/tools/list_changed");
            equal(await there(), wanted);
        }
    },
    async "resource updates"({ peer, other }) {
        await peer.listen(TEXT);
        await other.listen();
        await other.callTool("update", {});
        equal((await peer.heard.next("notifications/resources/updated")).uri, TEXT);
        await peer.callTool("toggle", {});
        await other.heard.next("notifications/tools/list_changed");
    },
    async sampling(view) {
        const asked = await asks("sample", "sampling/createMessage", "a sample", view);
        equal(asked.messages[0].content.text ?? asked.messages[0].content[0].text, "Say something");
    },
    async "elicitation form"(view) {
        const asked = await asks("form", "elicitation/create", "ada", view);
        equal([asked.message, asked.requestedSchema.required], ["Who are you?", ["name"]]);
    },
    async "elicitation URL"(view) {
        const asked = await asks("url", "elicitation/create", "accept", view);
        equal([asked.mode, asked.url], ["url", "https://example.com/sign-in"]);
    },
    async roots(view) {
        await asks("roots", "roots/list", "file:///home/ada", view);
    },
    // Last, because shortly afterwards a request of a shared server may still belong to the cancelled call.
    async cancel({ peer, other }) {
        const [who, abort] = [randomUUID(), new AbortController()];
        const begun = new Promise((resolve) => {
            const options = { onprogress: ({ message }) => resolve(message), signal: abort.signal };
            peer.callTool("wait", { who }, options).catch(() => {});
        });
        equal(await begun, who);
        abort.abort();
        const all = text(await other.callTool("cancelled", { who }));
        holds(`${who} in ${all}`, all.includes(who));
    },
};

async function report(feature, check) {
    let line = { feature };
    try {
        await within(2 * PATIENCE, "end", check());
    } catch (error) {
        line = { feature, [error.lacks ? "lacks" : "error"]: String(error.lacks ?? error.message ?? error) };
    }
    process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** Runs all checks against `server` of the gateway at `url`, each with its own clients. */
export async function run(connect, tasks) {
    const [gateway, server] = process.argv.slice(2, 4);
    const own = async () => {
        const [peer, other] = [await connect(`${gateway}/s/${server}`), await connect(`${gateway}/s/${server}`)];
        return { peer, other, prefix: "", own: true };
    };
    const together = async () => ({ peer: await connect(gateway, server), prefix: `${server}__`, own: false });
    for (const [feature, check] of Object.entries(offers)) {
        await report(feature, async () => {
            for (const view of [await own(), await together()]) await check(view);
        });
    }
    for (const [feature, check] of Object.entries(features)) await report(feature, async () => check(await own()));
    await report("tasks", async () => tasks(await own()));
    process.exit(0);
}
