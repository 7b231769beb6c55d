// A form made from the schema of a tool's arguments.

import { html, useState } from "./vendor/preact.js";
import { visible } from "./format.js";
import { Field } from "./parts.js";

/** Returns how a property is entered: choice, flag, number, text, lines or json. */
export function inputKind(schema) {
  if (Array.isArray(schema.enum) && schema.enum.every((value) => typeof value !== "object")) return "choice";
  const types = [schema.type].flat().filter((type) => type && type !== "null");
  if (types.length !== 1) return "json";
  if (types[0] === "boolean") return "flag";
  if (types[0] === "integer" || types[0] === "number") return "number";
  if (types[0] === "string") return "text";
  if (types[0] === "array" && schema.items?.type === "string" && !schema.items.enum) return "lines";
  return "json";
}

/** Returns the value of an entered text, or undefined if nothing was entered. Throws if the text is not a value. */
export function parseInput(schema, text) {
  const kind = inputKind(schema);
  if (text === undefined || (text === "" && kind !== "text")) return undefined;
  if (kind === "flag") return text === "true";
  if (kind === "choice") return schema.enum.find((value) => String(value) === text);
  if (kind === "lines") return text.split("\n").filter(Boolean);
  if (kind === "number") {
    const number = Number(text);
    if (!Number.isFinite(number)) throw new Error("this is not a number");
    if (schema.type === "integer" && !Number.isInteger(number)) throw new Error("this is not a whole number");
    return number;
  }
  if (kind === "json") {
    try {
      return JSON.parse(text);
    } catch {
      throw new Error("this is not JSON; texts need quotes");
    }
  }
  return text === "" ? undefined : text;
}

/** Returns {args, errors} of the texts that were entered. */
export function readForm(schema, texts) {
  const args = {};
  const errors = {};
  for (const [name, property] of Object.entries(schema?.properties ?? {})) {
    try {
      const value = parseInput(property, texts[name]);
      if (value !== undefined) args[name] = value;
      else if (schema.required?.includes(name)) errors[name] = "a value is required";
    } catch (error) {
      errors[name] = error.message;
    }
  }
  return { args, errors };
}

function Input({ name, schema, text, onText, isRequired, error }) {
  const kind = inputKind(schema);
  const change = (event) => onText(event.target.value);
  const common = { name, onInput: change, "aria-invalid": error ? "true" : undefined, required: isRequired };
  if (kind === "choice" || kind === "flag") {
    const choices = kind === "flag" ? ["true", "false"] : schema.enum.map(String);
    return html`<select ...${common} value=${text ?? ""}>
      <option value="">${isRequired ? "choose" : "not set"}</option>
      ${choices.map((choice) => html`<option value=${choice}>${visible(choice)}</option>`)}
    </select>`;
  }
  if (kind === "number") return html`<input ...${common} inputmode="decimal" value=${text ?? ""} placeholder=${String(schema.default ?? "")} />`;
  if (kind === "text" && !(schema.maxLength > 200)) {
    return html`<input ...${common} value=${text ?? ""} placeholder=${visible(schema.default ?? schema.examples?.[0] ?? "")} />`;
  }
  return html`<textarea ...${common} rows="3" spellcheck=${false} value=${text ?? ""} />`;
}

/** Entry of the arguments of a tool, as fields or as JSON. Calls `onSubmit` with the arguments. */
export function ArgumentForm({ schema, isBusy, onSubmit, onChange }) {
  const properties = Object.entries(schema?.properties ?? {});
  const [texts, setTexts] = useState({});
  const [raw, setRaw] = useState(null);
  const [errors, setErrors] = useState({});
  const setText = (name, text) => {
    const next = { ...texts, [name]: text };
    setTexts(next);
    onChange(readForm(schema, next).args);
  };
  const submit = (event) => {
    event.preventDefault();
    if (raw !== null) {
      try {
        setErrors({});
        onSubmit(JSON.parse(raw || "{}"));
      } catch {
        setErrors({ raw: "this is not JSON" });
      }
      return;
    }
    const form = readForm(schema, texts);
    setErrors(form.errors);
    if (!Object.keys(form.errors).length) onSubmit(form.args);
  };
  const toggle = () => {
    setErrors({});
    setRaw(raw === null ? JSON.stringify(readForm(schema, texts).args, null, 2) : null);
  };
  return html`<form class="arguments" onSubmit=${submit} noValidate>
    ${raw !== null
      ? html`<${Field} label="Arguments as JSON" hint=${errors.raw ? html`<span class="bad" role="alert">${errors.raw}</span>` : null}>
          <textarea rows="8" spellcheck=${false} value=${raw} onInput=${(event) => setRaw(event.target.value)} />
        <//>`
      : properties.map(([name, property]) => {
          const isRequired = Boolean(schema.required?.includes(name));
          const kinds = { lines: "one per line", json: "JSON" };
          const hints = [visible(property.description ?? ""), kinds[inputKind(property)]].filter(Boolean).join(" · ");
          const hint = errors[name] ? html`<span class="bad" role="alert">${errors[name]}</span> ${hints}` : hints;
          return html`<${Field} label="${visible(name)}${isRequired ? " (required)" : ""}" hint=${hint}>
            <${Input} name=${name} schema=${property} text=${texts[name]} onText=${(text) => setText(name, text)} isRequired=${isRequired} error=${errors[name]} />
          <//>`;
        })}
    ${raw === null && !properties.length ? html`<p class="empty">It takes no arguments.</p>` : null}
    <button class="primary" disabled=${isBusy}>${isBusy ? "Calling …" : "Call"}</button>
    <button type="button" onClick=${toggle}>${raw === null ? "Enter JSON" : "Use the form"}</button>
  </form>`;
}
