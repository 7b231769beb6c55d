// The fixtures, for both TypeScript SDKs. `io` has the SDK's functions for one call.

export const TEXT = "matrix://text";
const NAMES = ["echo", "steps", "log", "wait", "cancelled", "toggle", "update", "sample", "form", "url", "roots"];
const cancelled = [];
let changed = () => {};
let extra = false;

const said = (text) => ({ content: [{ type: "text", text }] });

/** The server request of a tool. The stateless era has no `elicitationId`. */
export function question(name, stateless) {
    const url = { mode: "url", message: "Sign in", url: "https://example.com/sign-in" };
    const form = {
        mode: "form",
        message: "Who are you?",
        requestedSchema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
    };
    const prompt = { role: "user", content: { type: "text", text: "Say something" } };
    return {
        sample: { method: "sampling/createMessage", params: { messages: [prompt], maxTokens: 50 } },
        form: { method: "elicitation/create", params: form },
        url: { method: "elicitation/create", params: stateless ? url : { ...url, elicitationId: "e-1" } },
        roots: { method: "roots/list" },
    }[name];
}

async function wait(who, io) {
    await io.progress({ progress: 1, message: who });
    await new Promise((resolve) => io.signal.addEventListener("abort", resolve));
    cancelled.push(who);
    changed();
}

async function wasCancelled(who) {
    while (!cancelled.includes(who)) await new Promise((resolve) => (changed = resolve));
    return cancelled.join(",");
}

export async function call(name, args, io) {
    switch (name) {
        case "echo":
            return said(args.text);
        case "steps":
            for (const progress of [1, 2, 3]) await io.progress({ progress, total: 3 });
            break;
        case "log":
            for (const line of ["one", "two", "three"]) await io.log("info", line);
            break;
        case "wait":
            await wait(args.who, io);
            break;
        case "cancelled":
            return said(await wasCancelled(args.who));
        case "toggle":
            extra = !extra;
            await io.toolsChanged();
            break;
        case "update":
            await io.updated(TEXT);
            break;
        case "sample":
        case "form":
        case "url":
        case "roots": {
            const answer = await io.ask(name);
            return answer.resultType === "input_required" ? answer : said(JSON.stringify(answer));
        }
    }
    return said("done");
}

export const capabilities = {
    tools: { listChanged: true },
    resources: { subscribe: true },
    prompts: {},
    completions: {},
    logging: {},
};

/** Requests with the same response in every SDK. */
export const answers = {
    "tools/list": () => ({
        tools: [...NAMES, ...(extra ? ["extra"] : [])].map((name) => ({ name, inputSchema: { type: "object" } })),
    }),
    "resources/list": () => ({ resources: [{ uri: TEXT, name: "text" }] }),
    "resources/templates/list": () => ({ resourceTemplates: [{ uriTemplate: "matrix://item/{id}", name: "item" }] }),
    "resources/read": ({ uri }) => ({
        contents: [{ uri, text: uri === TEXT ? "the text" : `item ${uri.replace("matrix://item/", "")}` }],
    }),
    "prompts/list": () => ({ prompts: [{ name: "greeting", arguments: [{ name: "name", required: true }] }] }),
    "prompts/get": (params) => ({
        messages: [{ role: "user", content: { type: "text", text: `Hello, ${params.arguments.name}!` } }],
    }),
    "completion/complete": ({ argument }) => ({
        completion: { values: ["ada", "alan"].filter((name) => name.startsWith(argument.value)) },
    }),
};
