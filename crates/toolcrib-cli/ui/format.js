// Numbers, times and text as the page shows them.

// Control characters except tab and line feed, and characters that are invisible or change the direction of text.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udfff]/g;

/** Returns text of a server with invisible characters spelled out, so that it reads as what it is. */
export function visible(text) {
  return String(text ?? "").replace(INVISIBLE, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

/** Returns the first line that is not empty. */
export function firstLine(text) {
  return visible(String(text ?? "").trim().split("\n")[0]);
}

export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en");
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${number < 10 && unit ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

/** Formats a share of a core or of a whole. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${share > 0 && share < 0.1 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`;
}

/** Formats milliseconds. */
export function millis(number) {
  if (number === null || number === undefined) return "–";
  if (number < 1) return `${number.toFixed(2)} ms`;
  if (number < 1000) return `${number < 10 ? number.toFixed(1) : Math.round(number)} ms`;
  return duration(number / 1000);
}

/** Formats seconds. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.5) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  const units = seconds < 3600 ? ["min", 60, "s", 1] : seconds < 86_400 ? ["h", 3600, "min", 60] : ["d", 86_400, "h", 3600];
  const [large, largeSize, small, smallSize] = units;
  const smalls = Math.round(seconds / smallSize);
  const perLarge = largeSize / smallSize;
  const rest = smalls % perLarge;
  return `${Math.floor(smalls / perLarge)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

export function rate(perSecond) {
  if (!perSecond) return "0/s";
  return perSecond < 10 ? `${perSecond.toFixed(1)}/s` : `${Math.round(perSecond)}/s`;
}

/** Returns the time of day of an RFC 3339 time stamp or of milliseconds, and the date unless it is today. */
export function clock(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return visible(time);
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toISOString().slice(0, 10)} `;
  return `${day}${date.toTimeString().slice(0, 8)}`;
}

export const json = (value) => visible(JSON.stringify(value, null, 2));

/** Quotes a word for a POSIX shell. */
export function shellWord(text) {
  return /^[\w./:@=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/**
 * Compares two texts line by line. Returns [{kind: "same" | "removed" | "added", text}].
 */
export function diffLines(before, after) {
  const old = before.split("\n");
  const now = after.split("\n");
  if (old.length * now.length > 4_000_000) {
    return [...old.map((text) => ({ kind: "removed", text })), ...now.map((text) => ({ kind: "added", text }))];
  }
  // lengths[i][j] is the length of the longest common part of old[i..] and now[j..].
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      lengths[i][j] = old[i] === now[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const lines = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push({ kind: "same", text: old[i] });
      i += 1;
      j += 1;
    } else if (j < now.length && (i === old.length || lengths[i][j + 1] > lengths[i + 1][j])) {
      lines.push({ kind: "added", text: now[j] });
      j += 1;
    } else {
      lines.push({ kind: "removed", text: old[i] });
      i += 1;
    }
  }
  return lines;
}
