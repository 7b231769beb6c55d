// Clients: the programs that are connected, what each of them sees, and what that costs.

import { html } from "./vendor/preact.js";
import { get } from "./api.js";
import { clock, count, visible } from "./format.js";
import { Heading, Missing, Table, useLoaded, useRepeated } from "./parts.js";

/** Time between two readings. */
const INTERVAL = 5000;

export function Clients() {
  const { value, error } = useRepeated("/api/v1/clients", INTERVAL);
  return html`<${Heading} title="Clients" />
    ${value
      ? html`<${Table} caption="Clients" rows=${value.clients ?? []} rowKey=${(client) => `${client.kind} ${client.name} ${client.caller} ${client.since}`}
          empty="No client is connected."
          columns=${[
            { title: "Client", cell: (client) => html`<span class="nowrap">${visible([client.name ?? "unnamed", client.version].filter(Boolean).join(" "))}</span>` },
            { title: "Caller", cell: (client) => visible([client.caller, client.profile].filter(Boolean).join(", profile ")) },
            { title: "Kind", cell: (client) => visible([client.kind, client.server].filter(Boolean).join(" at ")), wide: true },
            { title: "Protocol", cell: (client) => html`<span class="nowrap">${visible(client.protocol_version)}</span>`, wide: true },
            { title: "Capabilities", cell: (client) => visible(Object.keys(client.capabilities ?? {}).join(", ") || "none"), wide: true },
            { title: "Since", cell: (client) => html`<span class="nowrap">${clock(client.since)}</span>`, wide: true },
            { title: "Calls", cell: (client) => count(client.calls), number: true },
            { title: "Tools", cell: (client) => count(client.tools_shown), number: true },
            { title: "Tokens", cell: (client) => html`<details><summary>${count(client.tokens_shown)}</summary>${client.servers.map((row) => html`<div>${visible(row.server ?? "toolcrib")}: ${count(row.tokens)}</div>`)}</details>`, number: true },
          ]} />`
      : html`<${Missing} error=${error} />`}
    <section aria-labelledby="cost"><h2 id="cost">Cost by day</h2><${Cost} /></section>`;
}

/** The estimated tokens of results and definitions, per client and day. */
function Cost() {
  const { value, error } = useLoaded("cost", (abort) => get("/api/v1/stats?since=7d&cost=1", abort));
  if (!value) return html`<${Missing} error=${error} />`;
  return html`<${Table} caption="Cost by day" rows=${value.cost?.days ?? []} rowKey=${(row) => `${row.day} ${row.client} ${row.caller}`}
    empty="No call was made in the last week."
    columns=${[
      { title: "Day", cell: (row) => html`<span class="nowrap">${visible(row.day)}</span>` },
      { title: "Client", cell: (row) => visible(row.client ?? "unnamed") },
      { title: "Caller", cell: (row) => visible(row.caller) },
      { title: "Calls", cell: (row) => count(row.calls), number: true },
      { title: "Tokens of results", cell: (row) => count(row.result_tokens), number: true },
      { title: "Tokens of definitions", cell: (row) => count(row.definition_tokens), number: true },
    ]} />`;
}
