// The result of a call: text, JSON, images, audio and resources. Everything is shown as text or as an image, never as markup.

import { html, useEffect, useState } from "./vendor/preact.js";
import { bytes, json, visible } from "./format.js";
import { Json } from "./parts.js";

const IMAGE = /^image\/[a-z0-9.+-]+$/i;
const AUDIO = /^audio\/[a-z0-9.+-]+$/i;

/** A media file from base64, which the browser loads from memory. */
function Media({ type, data, children }) {
  const [url, setUrl] = useState(null);
  useEffect(() => {
    let created = null;
    try {
      const content = Uint8Array.from(atob(data), (byte) => byte.charCodeAt(0));
      created = URL.createObjectURL(new Blob([content], { type }));
      setUrl(created);
    } catch {
      setUrl(null);
    }
    return () => created && URL.revokeObjectURL(created);
  }, [type, data]);
  return url ? children(url) : html`<p class="failure">The data is not valid base64.</p>`;
}

function Binary({ type, data, label }) {
  if (IMAGE.test(type)) {
    return html`<${Media} type=${type} data=${data}>${(url) => html`<img class="result-image" src=${url} alt=${label} />`}<//>`;
  }
  if (AUDIO.test(type)) {
    return html`<${Media} type=${type} data=${data}>${(url) => html`<audio controls src=${url} aria-label=${label} />`}<//>`;
  }
  return html`<p>${visible(type)}, ${bytes(Math.floor((data.length * 3) / 4))}</p>`;
}

/** Returns JSON text in a readable form, and other text as it is. */
function readable(text) {
  if (!/^\s*[[{]/.test(text)) return visible(text);
  try {
    return json(JSON.parse(text));
  } catch {
    return visible(text);
  }
}

function Part({ part }) {
  const type = String(part.mimeType ?? part.resource?.mimeType ?? "");
  switch (part.type) {
    case "text":
      return html`<pre tabindex="0">${readable(part.text)}</pre>`;
    case "image":
    case "audio":
      return html`<${Binary} type=${type} data=${part.data} label="${part.type} in the result" />`;
    case "resource_link":
      return html`<p>Resource <code>${visible(part.uri)}</code> ${visible(part.name)} ${visible(part.description)}</p>`;
    case "resource":
      return html`<figure>
        <figcaption>Resource <code>${visible(part.resource?.uri)}</code> ${visible(type)}</figcaption>
        ${typeof part.resource?.text === "string"
          ? html`<pre tabindex="0">${readable(part.resource.text)}</pre>`
          : html`<${Binary} type=${type} data=${String(part.resource?.blob ?? "")} label="resource in the result" />`}
      </figure>`;
    default:
      return html`<${Json} value=${part} />`;
  }
}

/** The result of `tools/call`, rendered or as JSON. */
export function CallResult({ result, took }) {
  const [isRaw, setRaw] = useState(false);
  return html`<section class="result" aria-label="Result">
    <h3>${result.isError ? html`<span class="state bad">the tool reports an error</span>` : "Result"} <small>${took}</small></h3>
    <label><input type="checkbox" checked=${isRaw} onChange=${(event) => setRaw(event.target.checked)} /> Show the JSON</label>
    ${isRaw
      ? html`<${Json} value=${result} />`
      : html`${(result.content ?? []).map((part) => html`<${Part} part=${part} />`)}
          ${result.structuredContent === undefined ? null : html`<h4>Structured content</h4><${Json} value=${result.structuredContent} />`}
          ${result.content || result.structuredContent ? null : html`<${Json} value=${result} />`}`}
  </section>`;
}
