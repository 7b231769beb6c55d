// The overview: totals, what needs attention, and how calls flow from clients over the gateway to servers.

import { html, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { bytes, count, duration, millis, rate, visible } from "./format.js";
import { Heading, Sparkline, Table, useLatest } from "./parts.js";
import { attention, pauseAfter, samplesOf, status, whenVisible } from "./store.js";

/** Servers and clients that the drawing shows; the busiest come first. */
const MAX_NODES = 14;
/** Tools in the list of the busiest. */
const MAX_TOOLS = 8;
/** Time between two readings of statistics and of clients, which take longer the more calls are recorded. */
const INTERVAL = 10_000;
const MAX_INTERVAL = 120_000;

const sum = (servers, member) => servers.reduce((total, server) => total + (server[member] ?? 0), 0);
const last = (name) => samplesOf(name).at(-1) ?? { calls: 0, errors: 0 };

function Totals({ servers, stats }) {
  const now = last("");
  const series = (member) => samplesOf("").map((sample) => sample[member]);
  const latency = (stats?.series ?? []).map((point) => point.p95_ms ?? 0);
  const running = servers.filter((server) => server.state === "ready").length;
  const cards = [
    ["Servers running", `${running} of ${servers.length}`],
    ["Tools", count(sum(servers, "tools"))],
    ["Calls", rate(now.calls), series("calls")],
    ["Errors", rate(now.errors), series("errors")],
    stats ? ["p95 in 15 minutes", millis(stats.totals.p95_ms), latency] : null,
    ["In flight", count(sum(servers, "in_flight"))],
    ["Memory of servers", bytes(sum(servers, "memory"))],
    ["Gateway up", duration(status.value.uptime)],
  ];
  return html`<ul class="cards">
    ${cards.filter(Boolean).map(([title, value, values]) => html`<li>
      <span>${title}</span><strong>${value}</strong>
      ${values ? html`<${Sparkline} values=${values} label="${title} over time" bad=${title === "Errors"} />` : null}
    </li>`)}
  </ul>`;
}

function Attention() {
  const items = attention.value;
  if (!items.length) return html`<p class="empty">Nothing needs attention.</p>`;
  return html`<ul class="attention">
    ${items.slice(0, 50).map((item) => html`<li class=${item.level}><a href=${item.link}>${visible(item.text)}</a></li>`)}
  </ul>`;
}

/** Returns servers in the order in which they matter: broken, busy, running, the rest. */
function byInterest(servers) {
  const weight = (server) =>
    (["ejected", "tripped", "backing_off"].includes(server.state) ? 1e9 : 0) +
    last(server.name).calls * 1e3 +
    (server.state === "ready" ? 100 : 0) +
    Math.min(server.calls, 99);
  return [...servers].sort((a, b) => weight(b) - weight(a));
}

/** Draws clients, the gateway and servers in three columns. The width of a line is the rate of calls. */
function Topology({ servers, clients }) {
  const shown = byInterest(servers).slice(0, MAX_NODES);
  const sources = clients.slice(0, MAX_NODES);
  const rows = Math.max(shown.length, sources.length, 1);
  const height = rows * 34 + 16;
  const middle = height / 2;
  const place = (index, total) => (height / total) * (index + 0.5);
  const width = (calls) => Math.min(1.5 + Math.log2(1 + calls) * 1.5, 10);
  const edge = (x1, y1, x2, y2) => `M${x1},${y1} C${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2} ${x2},${y2}`;
  const amount = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  const summary = `${amount(sources.length, "client")}, one gateway, ${amount(servers.length, "server")}`;
  return html`<figure class="topology">
    <svg viewBox="0 0 720 ${height}" role="group" aria-label=${summary}>
      ${sources.map((client, index) => html`<g>
        <path class="edge" d=${edge(180, place(index, sources.length), 300, middle)} stroke-width=${width(0)} />
        <rect class="node" x="4" y=${place(index, sources.length) - 13} width="176" height="26" rx="6" />
        <text x="14" y=${place(index, sources.length) + 4}>${visible(client).slice(0, 24)}</text>
      </g>`)}
      ${shown.map((server, index) => html`<${ServerNode} server=${server} y=${place(index, shown.length)} d=${edge(420, middle, 500, place(index, shown.length))} width=${width} />`)}
      <rect class="node gateway" x="300" y=${middle - 24} width="120" height="48" rx="8" />
      <text x="360" y=${middle - 2} text-anchor="middle">gateway</text>
      <text class="minor" x="360" y=${middle + 14} text-anchor="middle">${rate(last("").calls)}</text>
    </svg>
    <figcaption>${summary}${servers.length > shown.length ? `; the ${shown.length} busiest are drawn` : ""}.</figcaption>
  </figure>`;
}

function ServerNode({ server, y, d, width }) {
  const { calls, errors } = last(server.name);
  const level = server.state === "ready" ? "good" : ["asleep", "disabled"].includes(server.state) ? "idle" : "bad";
  return html`<g>
    <path class="edge ${errors ? "bad" : calls ? "busy" : ""} ${server.breaker === "closed" ? "" : "open"}" d=${d} stroke-width=${width(calls)} />
    <a href="#/servers/${encodeURIComponent(server.name)}">
      <rect class="node ${level}" x="500" y=${y - 13} width="216" height="26" rx="6" />
      <text x="510" y=${y + 4}>${visible(server.name).slice(0, 20)}</text>
      <text class="minor" x="708" y=${y + 4} text-anchor="end">${calls ? rate(calls) : server.state.replace("_", " ")}</text>
    </a>
  </g>`;
}

/** The tools with the most calls. */
function Busiest({ stats }) {
  const rows = (stats?.tools ?? []).slice(0, MAX_TOOLS);
  if (!rows.length) return null;
  return html`<section aria-labelledby="busiest"><h2 id="busiest">Busiest tools in the last 15 minutes</h2>
    <${Table} caption="Busiest tools" rows=${rows} rowKey=${(row) => `${row.server} ${row.name}`} empty=""
      columns=${[
        { title: "Tool", cell: (row) => visible([row.server, row.name].filter(Boolean).join(".")) },
        { title: "Calls", cell: (row) => count(row.calls), number: true },
        { title: "Errors", cell: (row) => count(row.errors), number: true },
        { title: "p50", cell: (row) => millis(row.p50_ms), number: true },
        { title: "p99", cell: (row) => millis(row.p99_ms), number: true },
        { title: "Tokens of results", cell: (row) => count(row.result_tokens), number: true },
      ]} />
  </section>`;
}

/** Reads a path again and again while the page is visible, and returns the last value. */
function useRepeated(path) {
  const [turn, setTurn] = useState(0);
  return useLatest(turn, async (abort) => {
    const started = performance.now();
    try {
      return await get(path, abort);
    } finally {
      const pause = pauseAfter(performance.now() - started, INTERVAL, MAX_INTERVAL);
      setTimeout(() => whenVisible().then(() => abort.aborted || setTurn(turn + 1)), pause);
    }
  });
}

export function Overview() {
  const servers = status.value?.servers ?? [];
  const clients = useRepeated("/api/v1/clients");
  const stats = useRepeated("/api/v1/stats?since=15m&step=15s");
  const names = [...new Set((clients.value?.clients ?? []).map((client) => client.name ?? client.caller))];
  return html`<${Heading} title="Overview" />
    <${Totals} servers=${servers} stats=${stats.value} />
    <section aria-labelledby="attention"><h2 id="attention">Needs attention</h2><${Attention} /></section>
    <${Busiest} stats=${stats.value} />
    <section aria-labelledby="topology"><h2 id="topology">Clients and servers</h2>
      ${servers.length ? html`<${Topology} servers=${servers} clients=${names.length ? names : ["clients"]} />` : html`<p class="empty">No server is declared. <code>toolcrib add NAME -- COMMAND</code> adds one.</p>`}
    </section>`;
}
