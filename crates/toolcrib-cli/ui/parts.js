// Small parts that several screens use.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { diffLines, json, visible } from "./format.js";

/** Text of a server or a file: never markup. */
export const Text = ({ children }) => visible(Array.isArray(children) ? children.join("") : children);

/** The state of a server, as a word and a mark. */
export function State({ state }) {
  const level =
    { ready: "good", asleep: "idle", disabled: "idle", ejected: "bad", tripped: "bad", backing_off: "warn" }[state] ?? "warn";
  return html`<span class="state ${level}">${state.replace("_", " ")}</span>`;
}

let isFirstScreen = true;

/** The heading of a screen. It gets the focus when another screen is opened, so that it is read aloud. */
export function Heading({ title, children }) {
  const heading = useRef();
  useLayoutEffect(() => {
    document.title = `${visible(title)} · toolcrib`;
    if (!isFirstScreen) heading.current.focus({ preventScroll: true });
    isFirstScreen = false;
  }, [title]);
  return html`<div class="heading"><h1 tabindex="-1" ref=${heading}>${visible(title)}</h1>${children}</div>`;
}

/** A table. Columns are [{title, cell(row), number}]; a row has a key. */
export function Table({ caption, columns, rows, rowKey, empty }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="hidden">${caption}</caption>
      <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.number ? "number" : ""}>${column.title}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row) => html`<tr key=${rowKey(row)}>${columns.map((column) => html`<td class=${column.number ? "number" : ""}>${column.cell(row)}</td>`)}</tr>`)}
      </tbody>
    </table>
  </div>`;
}

/** Shows the first rows, and the others on request. */
export function useLimit(total, first = 100) {
  const [limit, setLimit] = useState(first);
  const more = total > limit
    ? html`<p><button onClick=${() => setLimit(limit * 4)}>Show more</button> ${limit} of ${total} are shown.</p>`
    : null;
  return [limit, more];
}

/** Names and values. */
export function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** Code that can be copied. */
export function Code({ text, label = "Copy" }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return html`<div class="code">
    <pre tabindex="0"><code>${visible(text)}</code></pre>
    <button class="small" onClick=${copy} aria-label=${label}>${copied ? "Copied" : "Copy"}</button>
  </div>`;
}

export const Json = ({ value }) => html`<pre tabindex="0"><code>${json(value)}</code></pre>`;

/** The differences between two JSON values. */
export function Diff({ before, now }) {
  const lines = diffLines(json(before ?? null), json(now));
  const mark = { same: " ", removed: "−", added: "+" };
  return html`<pre class="diff" tabindex="0" aria-label="differences">${lines.map(
    (line) => html`<span class="line ${line.kind}">${mark[line.kind]} ${line.text}</span>`,
  )}</pre>`;
}

/** A line of values over time. */
export function Sparkline({ values, label, bad }) {
  const width = 120;
  const height = 28;
  if (values.length < 2) return html`<svg class="spark" viewBox="0 0 ${width} ${height}" role="img" aria-label="${label}: no data yet" />`;
  const top = Math.max(...values, 0.001);
  const point = (value, index) =>
    `${((index / (values.length - 1)) * width).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`;
  return html`<svg class="spark ${bad ? "bad" : ""}" viewBox="0 0 ${width} ${height}" role="img" aria-label=${label} preserveAspectRatio="none">
    <polyline points=${values.map(point).join(" ")} />
  </svg>`;
}

/** Points on a time line of the last hour: [{time, level, text}]. */
export function TimeLine({ points, label }) {
  const hour = 3_600_000;
  const now = Date.now();
  const shown = points.map((point) => ({ ...point, x: 1 - (now - new Date(point.time).getTime()) / hour })).filter((point) => point.x >= 0);
  return html`<figure class="timeline">
    <svg viewBox="0 0 600 24" preserveAspectRatio="none" role="img" aria-label="${label}: ${shown.length} in the last hour">
      <line x1="0" y1="12" x2="600" y2="12" />
      ${shown.map((point) => html`<rect class=${point.level} x=${point.x * 596} y="3" width="4" height="18"><title>${point.text}</title></rect>`)}
    </svg>
    <figcaption><span>an hour ago</span><span>now</span></figcaption>
  </figure>`;
}

/** Bars with labels: [{label, value, text}]. */
export function Bars({ bars, caption }) {
  const top = Math.max(...bars.map((bar) => bar.value), 1);
  return html`<table class="bars">
    <caption>${caption}</caption>
    <tbody>
      ${bars.map((bar) => html`<tr>
        <th scope="row">${bar.label}</th>
        <td><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect width=${(bar.value / top) * 100} height="10" /></svg></td>
        <td class="number">${bar.text}</td>
      </tr>`)}
    </tbody>
  </table>`;
}

/** A labelled input. */
export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint ? html`<small>${hint}</small>` : null}</label>`;
}

/** An error with its hint. */
export function Failure({ error }) {
  if (!error) return null;
  return html`<p class="failure" role="alert"><${Text}>${error.message}<//>${error.hint ? html` <small>Hint: <${Text}>${error.hint}<//></small>` : null}</p>`;
}

/**
 * Loads something when `load` changes its key. Returns {value, error, reload}. A value of an older key is not shown.
 */
export function useLoaded(key, load) {
  const [state, setState] = useState({ key: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    load(abort.signal).then(
      (value) => abort.signal.aborted || setState({ key, value }),
      (error) => abort.signal.aborted || setState({ key, error }),
    );
    return () => abort.abort();
  }, [key, turn]);
  const current = state.key === key ? state : {};
  return { value: current.value, error: current.error, reload: () => setTurn((last) => last + 1) };
}

/** Like `useLoaded`, but the last value is shown until there is a new one. */
export function useLatest(key, load) {
  const loaded = useLoaded(key, load);
  const [last, setLast] = useState(undefined);
  useEffect(() => {
    if (loaded.value !== undefined) setLast(loaded.value);
  }, [loaded.value]);
  return { ...loaded, value: loaded.value ?? last };
}

/** What a screen says if the gateway has no such endpoint. */
export function Missing({ error, what }) {
  if (error?.status === 404 || error?.status === 405) {
    return html`<p class="empty">This gateway does not report ${what}.</p>`;
  }
  return html`<${Failure} error=${error} />`;
}
