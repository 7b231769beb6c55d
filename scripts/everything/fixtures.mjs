// The tools, prompts and resources that the conformance suite asks for, independent of the SDK. `io` has the SDK's functions for
// one request:
//
//   push(method, params)    sends a request to the client while the tool runs; fails where the era has no way to do so
//   answers                 the client's answers to the requests of `input`, or undefined
//   input(requests, state)  a result that asks the client to call again with its answers
//   state()                 the verified state of such a call
//   capabilities            what the client declared
//   missing(capabilities)   the answer to a client that did not declare them
//   log, progress, announce, closeStream

const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC";
const WAV = "UklGRiwAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQgAAACAgICAgICAgA==";
export const WATCHED = "test://watched-resource";
const STRING = { type: "string" };

const text = (text) => ({ type: "text", text });
const image = { type: "image", data: PNG, mimeType: "image/png" };
const embedded = (uri, mimeType, text) => ({ type: "resource", resource: { uri, mimeType, text } });
const result = (...content) => ({ content });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const form = (message, properties, required = Object.keys(properties)) => ({
    method: "elicitation/create",
    params: { mode: "form", message, requestedSchema: { type: "object", properties, required } },
});
const sampling = (prompt, maxTokens) => ({
    method: "sampling/createMessage",
    params: { messages: [{ role: "user", content: text(prompt) }], maxTokens },
});
const nameForm = form("What is your name?", { name: STRING });
const confirmation = form("Please confirm", { ok: { type: "boolean" } });
export const SAMPLE = sampling("Generate a greeting", 50);
const roots = { method: "roots/list", params: {} };

const DEFAULTS = {
    name: { type: "string", default: "John Doe" },
    age: { type: "integer", default: 30 },
    score: { type: "number", default: 95.5 },
    status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
    verified: { type: "boolean", default: true },
};
const OPTIONS = ["option1", "option2", "option3"];
const TITLED = ["First", "Second", "Third"].map((name, at) => ({ const: `value${at + 1}`, title: `${name} Option` }));
const ENUMS = {
    untitledSingle: { type: "string", enum: OPTIONS },
    titledSingle: { type: "string", oneOf: TITLED },
    legacyEnum: { type: "string", enum: ["opt1", "opt2", "opt3"], enumNames: ["Option One", "Option Two", "Option Three"] },
    untitledMulti: { type: "array", items: { type: "string", enum: OPTIONS } },
    titledMulti: { type: "array", items: { anyOf: TITLED } },
};
const VOCABULARY = {
    $schema: "https://json-schema.org/draft/2020-12/schema",
    type: "object",
    $defs: { address: { $anchor: "addressDef", type: "object", properties: { street: STRING, city: STRING } } },
    properties: {
        name: STRING,
        address: { $ref: "#/$defs/address" },
        contactMethod: { type: "string", enum: ["phone", "email"] },
        phone: STRING,
        email: STRING,
    },
    allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
    if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
    then: { required: ["phone"] },
    else: { required: ["email"] },
    additionalProperties: false,
};

// --- tools ---------------------------------------------------------------------------------------------------------

async function log(_, io) {
    for (const line of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
        await io.log("info", line);
        await pause(50);
    }
    return result(text("logged"));
}

async function progress(_, io) {
    for (const step of [0, 50, 100]) {
        await io.progress({ progress: step, total: 100, message: `Completed step ${step} of 100` });
        await pause(50);
    }
    return result(text("three steps"));
}

async function reconnect(_, io) {
    await io.log("info", "Before disconnect");
    io.closeStream();
    await pause(200);
    await io.log("info", "After reconnect");
    return result(text("Reconnection test completed"));
}

async function elicit(request, io) {
    const { action, content } = await io.push(request.method, request.params);
    return result(text(`action=${action}, content=${JSON.stringify(content ?? {})}`));
}

/** Asks for everything in `requests` by the result, with a state if there is one. */
async function ask(requests, io, state) {
    const answered = Object.keys(requests).every((key) => io.answers?.[key]);
    if (!answered) return io.input(requests, state);
    const confirmed = state === undefined ? "" : "state-ok: ";
    return result(text(confirmed + JSON.stringify(io.answers)));
}

async function askInRounds(_, io) {
    const { round = 0, name } = io.state() ?? {};
    if (round === 1 && io.answers?.step1) {
        const color = form("Step 2: What is your favorite color?", { color: STRING });
        return io.input({ step2: color }, { round: 2, name: io.answers.step1.content?.name });
    }
    if (round === 2 && io.answers?.step2) return result(text(`${name} likes ${io.answers.step2.content?.color}.`));
    return io.input({ step1: form("Step 1: What is your name?", { name: STRING }) }, { round: 1 });
}

async function askWhatIsDeclared(_, io) {
    const requests = {};
    if (io.capabilities.elicitation) requests.ask = nameForm;
    if (io.capabilities.sampling) requests.sample = SAMPLE;
    if (io.capabilities.roots) requests.roots = roots;
    return io.input(requests, "declared");
}

/** Name: [description, function, properties of the arguments]. */
const PLAIN = {
    test_simple_text: ["Text", () => result(text("This is a simple text response for testing."))],
    test_image_content: ["An image", () => result(image)],
    test_audio_content: ["Sound", () => result({ type: "audio", data: WAV, mimeType: "audio/wav" })],
    test_embedded_resource: [
        "An embedded resource",
        () => result(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")),
    ],
    test_multiple_content_types: [
        "Text, an image and a resource",
        () => {
            const data = JSON.stringify({ test: "data", value: 123 });
            const resource = embedded("test://mixed-content-resource", "application/json", data);
            return result(text("Multiple content types test:"), image, resource);
        },
    ],
    test_error_handling: [
        "Always an error",
        () => ({ ...result(text("This tool intentionally returns an error for testing")), isError: true }),
    ],
    test_x_mcp_header: [
        "Repeats an argument that is also sent in a header",
        ({ region }) => result(text(`region=${region}`)),
        { region: { type: "string", "x-mcp-header": "Region" } },
    ],
    test_tool_with_logging: ["Three log messages", log],
    test_logging_tool: ["Three log messages", log],
    test_tool_with_progress: ["Three steps of progress", progress],
    test_reconnection: ["Closes its stream while it runs", reconnect],
    test_trigger_tool_change: ["Announces a change of the tools", (_, io) => (io.announce.tools(), result(text("announced")))],
    test_trigger_prompt_change: ["Announces a change of the prompts", (_, io) => (io.announce.prompts(), result(text("announced")))],
    test_missing_capability: [
        "Needs a client that can sample",
        (_, io) => (io.capabilities.sampling ? result(text("the client can sample")) : io.missing({ sampling: {} })),
    ],
};
/** Tools that ask only while they run, as in a session. */
const PUSHING = {
    test_sampling: [
        "Asks for a sample",
        async ({ prompt }, io) => {
            const { method, params } = sampling(prompt, 100);
            const { content } = await io.push(method, params);
            return result(text(`LLM response: ${content.text}`));
        },
        { prompt: STRING },
    ],
    test_elicitation: [
        "Asks for a name and an address",
        ({ message }, io) => elicit(form(message, { username: STRING, email: STRING }), io),
        { message: STRING },
    ],
    test_elicitation_sep1034_defaults: ["Asks with defaults of every type", (_, io) => elicit(form("Defaults", DEFAULTS, []), io)],
    test_elicitation_sep1330_enums: ["Asks with enums of every kind", (_, io) => elicit(form("Enums", ENUMS, []), io)],
};
/** Tools that ask only by their result, as in the stateless era. */
const ASKING = {
    test_streaming_elicitation: ["Asks for a confirmation", (_, io) => ask({ confirm: confirmation }, io)],
    test_input_required_result_elicitation: ["Asks for a name", (_, io) => ask({ user_name: nameForm }, io)],
    test_input_required_result_sampling: [
        "Asks for the capital of France",
        (_, io) => ask({ capital_question: sampling("What is the capital of France?", 100) }, io),
    ],
    test_input_required_result_list_roots: ["Asks for the client's roots", (_, io) => ask({ client_roots: roots }, io)],
    test_input_required_result_request_state: [
        "Asks, and needs its state back",
        (_, io) => ask({ confirm: confirmation }, io, "confirm"),
    ],
    test_input_required_result_tampered_state: [
        "Asks, and needs its state back unchanged",
        (_, io) => (io.state() === undefined ? io.input({ confirm: confirmation }, "round-1") : result(text("state-ok"))),
    ],
    test_input_required_result_multiple_inputs: [
        "Asks three things at the same time",
        (_, io) => ask({ user_name: nameForm, greeting: SAMPLE, client_roots: roots }, io, "all"),
    ],
    test_input_required_result_multi_round: ["Asks twice", askInRounds],
    test_input_required_result_capabilities: ["Asks all that the client can answer", askWhatIsDeclared],
};

/** Returns [{name, description, inputSchema, run}]; `asking` adds the tools that ask by their result. */
export function tools(asking) {
    const all = { ...PLAIN, ...PUSHING, ...(asking ? ASKING : {}) };
    const listed = Object.entries(all).map(([name, [description, run, properties = {}]]) => {
        return { name, description, run, inputSchema: { type: "object", properties } };
    });
    const run = ({ name }) => result(text(`Hello, ${name}!`));
    return [...listed, { name: "json_schema_2020_12_tool", description: "JSON Schema 2020-12", run, inputSchema: VOCABULARY }];
}

// --- prompts and resources -----------------------------------------------------------------------------------------

const messages = (...content) => ({ messages: content.map((content) => ({ role: "user", content })) });

/** Name: [description, names of the arguments, function]. */
export const PROMPTS = {
    test_simple_prompt: ["A prompt", [], () => messages(text("This is a simple prompt for testing."))],
    test_prompt_with_arguments: [
        "A prompt with arguments",
        ["arg1", "arg2"],
        ({ arg1, arg2 }) => messages(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)),
    ],
    test_prompt_with_embedded_resource: [
        "A prompt with a resource",
        ["resourceUri"],
        ({ resourceUri }) => {
            const resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.");
            return messages(resource, text("Please process the embedded resource above."));
        },
    ],
    test_prompt_with_image: ["A prompt with an image", [], () => messages(image, text("Please analyze the image above."))],
};
export const ASKING_PROMPTS = {
    test_input_required_result_prompt: [
        "A prompt that asks",
        [],
        (_, io) => {
            const answer = io.answers?.user_context;
            const request = form("What context should the prompt use?", { context: STRING });
            return answer ? messages(text(`Context: ${answer.content?.context}`)) : io.input({ user_context: request });
        },
    ],
};

export const RESOURCES = [
    { uri: "test://static-text", name: "static text", mimeType: "text/plain", text: "This is the content of the static text resource." },
    { uri: "test://static-binary", name: "static binary", mimeType: "image/png", blob: PNG },
    { uri: WATCHED, name: "watched resource", mimeType: "text/plain", text: "Watch me." },
];
export const TEMPLATE = { uriTemplate: "test://template/{id}/data", name: "template", mimeType: "application/json" };

export function readTemplate(uri, id) {
    const data = { id, templateTest: true, data: `Data for ID: ${id}` };
    return { contents: [{ uri, mimeType: TEMPLATE.mimeType, text: JSON.stringify(data) }] };
}

export const complete = (prefix) => ["paris", "park", "party", "test-value"].filter((word) => word.startsWith(prefix));

/** Streams that a client can resume. */
export class Events {
    events = [];

    async storeEvent(stream, message) {
        this.events.push({ stream, message });
        return String(this.events.length);
    }

    async getStreamIdForEventId(id) {
        return this.events[Number(id) - 1]?.stream;
    }

    async replayEventsAfter(id, { send }) {
        const stream = await this.getStreamIdForEventId(id);
        for (let at = Number(id); at < this.events.length; at += 1) {
            const event = this.events[at];
            // The event that opens a stream has no message.
            if (event.stream === stream && Object.keys(event.message).length) await send(String(at + 1), event.message);
        }
        return stream;
    }
}
