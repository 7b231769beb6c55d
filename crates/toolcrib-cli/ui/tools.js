// Tools: the search of the gateway, one definition, its cost, and a form to call it.

import { html, useEffect, useMemo, useState } from "./vendor/preact.js";
import { get, mcp, mcpRequest, query, session } from "./api.js";
import { count, firstLine, millis, shellWord, visible } from "./format.js";
import { ArgumentForm } from "./form.js";
import { Code, Facts, Failure, Field, Heading, Json, Table, Text, useLatest, useLoaded } from "./parts.js";
import { CallResult } from "./result.js";
import { status } from "./store.js";

/** Tools that a search shows. */
const MAX_TOOLS = 100;
/** Time without typing after which the gateway is asked. */
const TYPING_DELAY = 150;
/** Time between two readings of an incomplete list. */
const LIST_INTERVAL = 3000;

export function Tools({ path }) {
  const [name] = path;
  if (name && !name.startsWith("?")) return html`<${Tool} name=${name} key=${name} />`;
  return html`<${ToolList} server=${new URLSearchParams(name).get("server") ?? ""} />`;
}

/** Reads tools: those of the admin API, or for other callers those that they see as clients. */
async function findTools(text, server, abort) {
  if (session.value.admin) {
    return get(`/api/v1/tools${query({ q: text, server, brief: 1, limit: MAX_TOOLS })}`, abort);
  }
  const { tools } = await mcp("tools/list", {}, abort);
  const found = tools.filter((tool) => `${tool.name} ${tool.description}`.toLowerCase().includes(text.toLowerCase()));
  const shown = found.slice(0, MAX_TOOLS).map((tool) => ({ name: tool.name, description: tool.description, definition: tool }));
  return { tools: shown, total: found.length, failed: [], pending: [] };
}

function ToolList({ server }) {
  const [text, setText] = useState("");
  const [asked, setAsked] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setAsked(text.trim()), TYPING_DELAY);
    return () => clearTimeout(timer);
  }, [text]);
  const revision = status.value?.servers[0]?.revision ?? 0;
  const { value: shown, error, reload } = useLatest(`${server} ${revision} ${asked}`, (abort) => findTools(asked, server, abort));
  useEffect(() => {
    if (!shown) return undefined;
    // Servers that start for the first time are listed later. Only the admin API announces that.
    const isComplete = session.value.admin && !shown.pending.length;
    const timer = isComplete ? null : setTimeout(reload, LIST_INTERVAL);
    return () => clearTimeout(timer);
  }, [shown]);
  const columns = [
    { title: "Name", cell: (tool) => html`<a href="#/tools/${encodeURIComponent(tool.name)}">${visible(tool.name)}</a>` },
    { title: "Description", cell: (tool) => html`${tool.change ? html`<span class="state warn">${tool.change}</span> ` : null}${firstLine(tool.description)}` },
    { title: "Tokens", cell: (tool) => count(tool.tokens), number: true },
    ...(asked && session.value.admin ? [{ title: "Score", cell: (tool) => tool.score?.toFixed(2) ?? "", number: true, wide: true }] : []),
  ];
  const total = shown?.total ?? shown?.tools.length ?? 0;
  return html`<${Heading} title=${server ? `Tools of ${server}` : "Tools"} />
    <${Field} label="What should the tool do?" hint="The search of the gateway, as agents use it. Best match first.">
      <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} />
    <//>
    <${Failure} error=${error} />
    ${shown
      ? html`<p role="status">${count(total)} tools${total > shown.tools.length ? `, ${shown.tools.length} are shown` : ""}${shown.total_tokens ? `, about ${count(shown.total_tokens)} tokens` : ""}</p>
          <${Table} caption="Tools" columns=${columns} rows=${shown.tools} rowKey=${(tool) => tool.name} empty="No tool matches." />
          ${shown.failed.map((failure) => html`<${Failure} error=${failure} />`)}
          ${shown.pending.length ? html`<p class="note">Not listed yet: ${shown.pending.join(", ")}</p>` : null}`
      : html`<p class="empty">Reading …</p>`}`;
}

async function findTool(name, abort) {
  if (session.value.admin) {
    const reply = await get(`/api/v1/tools${query({ name })}`, abort);
    return reply.tools[0] ?? null;
  }
  const { tools } = await findTools("", "", abort);
  return tools.find((tool) => tool.name === name) ?? null;
}

function Tool({ name }) {
  const { value: tool, error } = useLoaded(name, (abort) => findTool(name, abort));
  const [args, setArgs] = useState({});
  if (error || tool === undefined) {
    return html`<${Heading} title=${name} />${error ? html`<${Failure} error=${error} />` : html`<p class="empty">Reading …</p>`}`;
  }
  if (!tool) return html`<${Heading} title=${name} /><p class="empty">No tool is called <code>${visible(name)}</code>. <a href="#/tools">All tools</a></p>`;
  const definition = tool.definition ?? {};
  const annotations = Object.entries(definition.annotations ?? {});
  return html`<${Heading} title=${name}>${tool.change ? html`<a class="state warn" href="#/servers/${encodeURIComponent(tool.server)}/changes">${tool.change}: review</a>` : null}<//>
    <p class="description"><${Text}>${tool.description ?? ""}<//></p>
    <${Facts} facts=${[
      tool.server ? ["Server", html`<a href="#/servers/${encodeURIComponent(tool.server)}">${tool.server}</a>`] : null,
      tool.tool ? ["Own name", visible(tool.tool)] : null,
      tool.tokens ? ["Cost", `about ${count(tool.tokens)} tokens`] : null,
      definition.title ? ["Title", visible(definition.title)] : null,
      ...annotations.map(([key, value]) => [visible(key), visible(JSON.stringify(value))]),
      ["Approved", tool.change ? `no, it is ${tool.change}` : "yes"],
    ]} />
    <div class="columns">
      <section class="panel" aria-labelledby="try"><h2 id="try">Try it</h2><${TryIt} name=${name} schema=${definition.inputSchema} onArgs=${setArgs} /></section>
      <section class="panel" aria-labelledby="copy"><h2 id="copy">Copy as</h2><${CopyAs} name=${name} args=${args} /></section>
    </div>
    <details><summary>Definition</summary><${Json} value=${definition} /></details>`;
}

function TryIt({ name, schema, onArgs }) {
  const [state, setState] = useState({});
  const call = async (args) => {
    onArgs(args);
    setState({ isBusy: true });
    const started = performance.now();
    try {
      const result = await mcp("tools/call", { name, arguments: args });
      setState({ result, took: millis(performance.now() - started) });
    } catch (error) {
      setState({ error });
    }
  };
  return html`<${ArgumentForm} schema=${schema} isBusy=${state.isBusy} onSubmit=${call} onChange=${onArgs} />
    <div aria-live="polite">
      <${Failure} error=${state.error} />
      ${state.result ? html`<${CallResult} result=${state.result} took=${state.took} />` : null}
    </div>`;
}

/** The same call for the command line, curl and the SDKs. */
function examples(name, args) {
  const request = mcpRequest("tools/call", { name, arguments: args });
  const url = `${location.origin}/mcp`;
  const text = JSON.stringify(args);
  const curl = [
    `curl -s ${url}`,
    ...Object.entries(request.headers).map(([key, value]) => `  -H ${shellWord(`${key}: ${value}`)}`),
    `  -d ${shellWord(JSON.stringify(request.body))}`,
  ];
  return {
    "Command line": `toolcrib call ${name}${text === "{}" ? "" : ` --args ${shellWord(text)}`}`,
    curl: curl.join(" \\\n"),
    Python: `from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

async with streamablehttp_client(${JSON.stringify(url)}) as (read, write, _):
    async with ClientSession(read, write) as session:
        await session.initialize()
        result = await session.call_tool(${JSON.stringify(name)}, ${pythonLiteral(args)})`,
    TypeScript: `import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const client = new Client({ name: "example", version: "1.0.0" });
await client.connect(new StreamableHTTPClientTransport(new URL(${JSON.stringify(url)})));
const result = await client.callTool({ name: ${JSON.stringify(name)}, arguments: ${text} });`,
  };
}

function pythonLiteral(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([key, member]) => `${JSON.stringify(key)}: ${pythonLiteral(member)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

function CopyAs({ name, args }) {
  const [kind, setKind] = useState("Command line");
  const texts = useMemo(() => examples(name, args), [name, args]);
  return html`<${Field} label="Language">
      <select value=${kind} onInput=${(event) => setKind(event.target.value)}>${Object.keys(texts).map((key) => html`<option>${key}</option>`)}</select>
    <//>
    <${Code} text=${texts[kind]} label="Copy the ${kind} example" />`;
}
