// The overview: what needs attention, totals, how calls flow from clients over the gateway to servers, and what happened last.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { bytes, clock, count, duration, millis, rate, visible } from "./format.js";
import { Heading, Message, Sparkline, Table, useRepeated } from "./parts.js";
import { attention, events, samplesOf, status } from "./store.js";

/** Servers and clients that the drawing shows; the busiest come first. */
const MAX_NODES = 12;
/** Rows of the short lists. */
const MAX_ROWS = 8;
/** Items that need attention, before the others are only counted. */
const MAX_ITEMS = 20;
/** Time between two readings of statistics and of clients, which take longer the more calls are recorded. */
const INTERVAL = 10_000;
/** States of servers that are not working. */
const BROKEN = ["ejected", "tripped", "backing_off"];

const sum = (servers, member) => servers.reduce((total, server) => total + (server[member] ?? 0), 0);
const last = (name) => samplesOf(name).at(-1) ?? { calls: 0, errors: 0 };

/** Returns values without those before the first one that is known. */
function withoutStart(values) {
  const first = values.findIndex((value) => value !== null);
  return first < 0 ? [] : values.slice(first);
}

/** Returns how many servers are in which state, other than ready. */
function describeStates(servers) {
  const counts = new Map();
  for (const { state } of servers) if (state !== "ready") counts.set(state, (counts.get(state) ?? 0) + 1);
  return [...counts].map(([state, number]) => `${count(number)} ${state.replace("_", " ")}`).join(", ");
}

function Totals({ servers, stats }) {
  const now = last("");
  const series = (member) => samplesOf("").map((sample) => sample[member]);
  const ready = servers.filter((server) => server.state === "ready").length;
  const totals = stats?.totals;
  const store = status.value.store;
  const cards = [
    { title: "Calls", value: rate(now.calls), values: series("calls"), note: totals ? `${count(totals.calls)} in 15 min` : null },
    { title: "Errors", value: rate(now.errors), values: series("errors"), bad: now.errors > 0, note: totals ? `${count(totals.errors)} in 15 min, ${count(totals.denied)} denied` : null },
    totals ? { title: "p95", value: millis(totals.p95_ms), values: withoutStart(stats.series.map((point) => point.p95_ms ?? null)), note: `p50 ${millis(totals.p50_ms)}, p99 ${millis(totals.p99_ms)}` } : null,
    { title: "Servers ready", value: `${count(ready)} of ${count(servers.length)}`, note: describeStates(servers) },
    { title: "Tools", value: count(sum(servers, "tools")), note: `${count(sum(servers, "in_flight"))} calls in flight` },
    { title: "Memory of servers", value: bytes(sum(servers, "memory")), note: `gateway up ${duration(status.value.uptime)}` },
    store ? { title: "Shared store", value: store.state, bad: store.state === "down", note: [`for ${duration(store.since)}`, store.address].filter(Boolean).map(visible).join(", ") } : null,
  ];
  return html`<ul class="cards">
    ${cards.filter(Boolean).map(({ title, value, note, values, bad }) => html`<li>
      <span>${title}</span><strong class=${bad ? "bad" : ""}>${value}</strong>
      ${values ? html`<${Sparkline} values=${values} label="${title} over time" bad=${bad} />` : null}
      ${note ? html`<small>${note}</small>` : null}
    </li>`)}
  </ul>`;
}

function Attention() {
  const items = attention.value;
  if (!items.length) return html`<p class="calm">Nothing needs attention.</p>`;
  return html`<ul class="attention">
    ${items.slice(0, MAX_ITEMS).map((item) => html`<li class=${item.level}>
      <a href=${item.link}><strong>${visible(item.about)}</strong> <span><${Message} text=${item.text} /></span></a>
    </li>`)}
    ${items.length > MAX_ITEMS ? html`<li><a href="#/servers">${count(items.length - MAX_ITEMS)} more</a></li>` : null}
  </ul>`;
}

/** Returns servers in the order in which they matter: broken, busy, running, the rest. */
function byInterest(servers) {
  const weight = (server) =>
    (BROKEN.includes(server.state) ? 1e9 : 0) + last(server.name).calls * 1e3 + (server.state === "ready" ? 100 : 0) + Math.min(server.calls, 99);
  return [...servers].sort((a, b) => weight(b) - weight(a));
}

/** Returns [{name, calls, perSecond}] of client programs, the busiest first. The rate is that since the previous reading. */
function useClientRates(clients) {
  const previous = useRef(null);
  const [sources, setSources] = useState([]);
  useEffect(() => {
    if (!clients) return;
    const calls = new Map();
    for (const client of clients) {
      const name = client.name ?? client.caller;
      calls.set(name, (calls.get(name) ?? 0) + (client.calls ?? 0));
    }
    const at = performance.now();
    const before = previous.current;
    const perSecond = (name, now) => {
      const earlier = before?.calls.get(name);
      return earlier === undefined ? null : (Math.max(0, now - earlier) * 1000) / (at - before.at);
    };
    previous.current = { at, calls };
    const found = [...calls].map(([name, now]) => ({ name, calls: now, perSecond: perSecond(name, now) }));
    setSources(found.sort((a, b) => (b.perSecond ?? 0) - (a.perSecond ?? 0) || b.calls - a.calls));
  }, [clients]);
  return sources;
}

/** Lines from the gateway to each of `nodes`, which are spread over the height. The width of a line is the rate of calls. */
function Edges({ nodes, isLeft }) {
  const width = (calls) => Math.min(1.5 + Math.log2(1 + calls), 8);
  const path = (index) => {
    const y = ((index + 0.5) / nodes.length) * 100;
    return isLeft ? `M0,${y} C50,${y} 50,50 100,50` : `M0,50 C50,50 50,${y} 100,${y}`;
  };
  return html`<svg class="edges" viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">
    ${nodes.map((node, index) => html`<path class=${node.level} d=${path(index)} stroke-width=${width(node.calls)} />`)}
  </svg>`;
}

/** Draws clients, the gateway and servers in three columns. */
function Topology({ servers, sources, stats }) {
  const shown = byInterest(servers).slice(0, MAX_NODES);
  const series = new Map((stats?.servers ?? []).map((row) => [row.name, row]));
  const clients = sources.slice(0, MAX_NODES);
  const amount = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
  const left = clients.map(({ perSecond }) => ({ calls: perSecond ?? 0, level: perSecond ? "busy" : "" }));
  const right = shown.map((server) => {
    const { calls, errors } = last(server.name);
    const level = errors ? "bad" : calls ? "busy" : "";
    return { calls, level: `${level} ${server.breaker === "closed" ? "" : "open"}` };
  });
  return html`<div class="topology">
    <ul aria-label="Clients">
      ${clients.length
        ? clients.map(({ name, calls, perSecond }) => html`<li><div class="node"><span class="name">${visible(name)}</span>
            <span class="facts-line">${perSecond ? rate(perSecond) : `${count(calls)} calls`}</span></div></li>`)
        : html`<li><div class="node idle"><span class="name">no client yet</span></div></li>`}
    </ul>
    <${Edges} nodes=${left.length ? left : [{ calls: 0, level: "" }]} isLeft=${true} />
    <div class="gateway"><strong>gateway</strong><span>${rate(last("").calls)}</span></div>
    <${Edges} nodes=${right} isLeft=${false} />
    <ul aria-label="Servers">
      ${shown.map((server) => html`<li key=${server.name}><${ServerNode} server=${server} row=${series.get(server.name)} /></li>`)}
    </ul>
    <p class="legend">${amount(sources.length, "client")}, ${amount(servers.length, "server")}${servers.length > shown.length ? `; the ${shown.length} that matter most are drawn` : ""}. Lines are calls now, curves the p95 of 15 minutes.</p>
  </div>`;
}

function ServerNode({ server, row }) {
  const { calls, errors } = last(server.name);
  const level = server.state === "ready" ? "good" : ["asleep", "disabled"].includes(server.state) ? "idle" : "bad";
  const facts = calls ? rate(calls) : server.state === "ready" && row ? millis(row.p95_ms) : server.state.replace("_", " ");
  return html`<a class="node ${level}" href="#/servers/${encodeURIComponent(server.name)}">
    <span class="name">${visible(server.name)}</span>
    ${row ? html`<${Sparkline} values=${withoutStart(row.series?.p95_ms ?? [])} label="p95 of ${server.name}" />` : null}
    ${errors ? html`<span class="bad">${rate(errors)} errors</span>` : null}
    <span class="facts-line">${facts}</span>
  </a>`;
}

/** The tools with the most calls. */
function Busiest({ stats }) {
  return html`<section aria-labelledby="busiest"><h2 id="busiest">Busiest tools in 15 minutes</h2>
    <${Table} caption="Busiest tools" rows=${(stats?.tools ?? []).slice(0, MAX_ROWS)} rowKey=${(row) => `${row.server} ${row.name}`} empty="No call in the last 15 minutes."
      columns=${[
        { title: "Tool", cell: (row) => visible([row.server, row.name].filter(Boolean).join(".")) },
        { title: "Calls", cell: (row) => count(row.calls), number: true },
        { title: "Errors", cell: (row) => html`<span class=${row.errors ? "bad" : ""}>${count(row.errors)}</span>`, number: true },
        { title: "p50", cell: (row) => millis(row.p50_ms), number: true, wide: true },
        { title: "p99", cell: (row) => millis(row.p99_ms), number: true },
        { title: "Tokens", cell: (row) => count(row.result_tokens), number: true, wide: true },
      ]} />
  </section>`;
}

/** The last events other than calls. */
function Latest() {
  const found = events.value.slice(0, MAX_ROWS);
  return html`<section aria-labelledby="latest"><h2 id="latest">Latest events</h2>
    <${Table} caption="Latest events" rows=${found} rowKey=${(event) => event.id} empty="No event in the last hour."
      columns=${[
        { title: "Time", cell: (event) => html`<span class="nowrap">${clock(event.time)}</span>` },
        { title: "Server", cell: (event) => (event.server ? html`<a href="#/servers/${encodeURIComponent(event.server)}">${visible(event.server)}</a>` : "") },
        { title: "Event", cell: (event) => html`<${Message} text=${event.message} />` },
      ]} />
  </section>`;
}

export function Overview() {
  const servers = status.value?.servers ?? [];
  const clients = useRepeated("/api/v1/clients", INTERVAL);
  const stats = useRepeated("/api/v1/stats?since=15m&step=15s", INTERVAL);
  const sources = useClientRates(clients.value?.clients);
  return html`<${Heading} title="Overview" />
    <section aria-labelledby="attention"><h2 id="attention" class=${attention.value.length ? "" : "hidden"}>Needs attention</h2><${Attention} /></section>
    <${Totals} servers=${servers} stats=${stats.value} />
    <section aria-labelledby="topology"><h2 id="topology">Clients and servers</h2>
      ${servers.length
        ? html`<${Topology} servers=${servers} sources=${sources} stats=${stats.value} />`
        : html`<p class="empty">No server is declared. <code>toolcrib add NAME -- COMMAND</code> adds one.</p>`}
    </section>
    <div class="columns"><${Busiest} stats=${stats.value} /><${Latest} /></div>`;
}
