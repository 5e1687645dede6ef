// Format numbers, times and bytes for people. Pure functions.

// Not with Intl.NumberFormat: its first use costs more than the rest of the page's start.
const grouped = (text) => text.length < 4 ? text : text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
const whole = { format: (value) => grouped(String(Math.round(value))) };
const tenth = {
  format(value) {
    const [units, part] = Number(value).toFixed(1).split(".");
    return part === "0" ? grouped(units) : `${grouped(units)}.${part}`;
  },
};

export const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : whole.format(value);
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

// 1,234 stays; 12,345 becomes 12.3 k.
export function short(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size < 10_000) return whole.format(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit) return `${tenth.format(value / unit)} ${name}`;
  return whole.format(value);
}

export function rate(value) {
  if (!value) return value === 0 ? "0" : NONE;
  return value < 10 ? tenth.format(value) : short(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let left = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (left < 1024 || unit === "TiB") return `${unit === "B" ? whole.format(left) : tenth.format(left)} ${unit}`;
    left /= 1024;
  }
  return NONE;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 0) return `-${milliseconds(-value)}`;
  if (value < 10) return `${tenth.format(value)} ms`;
  return value < 1000 ? `${whole.format(value)} ms` : span(value);
}

// Format a duration in milliseconds, in its two largest units.
export function span(value) {
  const units = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000]];
  let left = Math.round(Math.abs(value) / 1000) * 1000;
  if (left < 60_000) return `${tenth.format(Math.abs(value) / 1000)} s`;
  const parts = [];
  for (const [name, size] of units) {
    const times = Math.floor(left / size);
    if (times && parts.length < 2) parts.push(`${times} ${name}`);
    else if (parts.length) break;
    left -= times * size;
  }
  return parts.join(" ");
}

// Ages are computed with the cluster's clock, because the browser's may be wrong.
const ASIDE_MS = 5000; // differences up to this are ignored: an update may be that old
let offsetMs = 0;
export const nowMs = () => Date.now() + offsetMs;
export function setNow(at) {
  const away = Date.parse(at) - Date.now();
  offsetMs = Math.abs(away) > ASIDE_MS ? away : 0;
}

export function ago(at, now = nowMs()) {
  if (at === null || at === undefined) return NONE;
  const away = now - Date.parse(at);
  if (Math.abs(away) < 1000) return "now";
  return away > 0 ? `${span(away)} ago` : `in ${span(-away)}`;
}

export function instant(at) {
  if (at === null || at === undefined) return NONE;
  const found = new Date(at);
  if (Number.isNaN(found.getTime())) return String(at);
  const two = (part, size = 2) => String(part).padStart(size, "0");
  const there = new Date(found.getTime() - offsetMinutes(found) * 60_000);
  const day = `${there.getUTCFullYear()}-${two(there.getUTCMonth() + 1)}-${two(there.getUTCDate())}`;
  const fraction = there.getUTCMilliseconds() ? `.${two(there.getUTCMilliseconds(), 3)}` : "";
  return `${day} ${two(there.getUTCHours())}:${two(there.getUTCMinutes())}:${two(there.getUTCSeconds())}${fraction}`;
}

// Times are in the browser's zone, or in UTC. The choice is stored in the browser.
const ZONE = "sandq.times";
let isUtc = false;
try {
  isUtc = localStorage.getItem(ZONE) === "utc";
} catch {
  // storage is not available: use the default
}
export const showsUtc = () => isUtc;
export function setUtc(is) {
  isUtc = is;
  try {
    localStorage.setItem(ZONE, is ? "utc" : "local");
  } catch {
    // storage is not available: the choice lasts for this page only
  }
}
export const offsetMinutes = (when) => (isUtc ? 0 : when.getTimezoneOffset());

// Parse the value of a date and time field, in the zone in which times are shown.
export const typed = (text) => new Date(isUtc && !/[zZ]$/.test(text) ? `${text}Z` : text);

// Return the zone in which times are shown, as its current offset from UTC.
export function zone(when = new Date(nowMs())) {
  const minutes = -offsetMinutes(when);
  if (!minutes) return "UTC";
  const two = (part) => String(part).padStart(2, "0");
  return `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
}

// Characters that are invisible or affect the text around them: lone surrogates, control characters, and changes of the
// writing direction. They are shown as escapes.
export const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

export function visible(text) {
  return String(text).replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function cut(text, most = 120) {
  const shown = visible(text);
  return shown.length > most ? `${shown.slice(0, most)}…` : shown;
}

// Return the beginning of a value, for a table cell. `row`: a message whose value may be truncated.
export const PREVIEW_BYTES = 320;
const PREVIEW_CHARS = 80;
const PREVIEW_HEX = 12;
export function preview(row) {
  if (typeof row.text === "string") {
    let text = row.text;
    try {
      if (/^\s*[{[]/.test(text)) text = respaced(text);
    } catch {
      // not JSON, or truncated
    }
    const line = text.replace(/\s+/g, " ").trim();
    const isCut = new TextEncoder().encode(row.text).length < row.size && line.length <= PREVIEW_CHARS;
    return cut(line, PREVIEW_CHARS) + (isCut ? "…" : "");
  }
  if (typeof row.value !== "string") return row.value === null ? "null" : "";
  const data = fromBase64(row.value);
  const codes = Array.from(data.subarray(0, PREVIEW_HEX), (one) => one.toString(16).padStart(2, "0"));
  return `${bytes(row.size)}: ${codes.join(" ")}${row.size > PREVIEW_HEX ? " …" : ""}`;
}

export function hex(data, start = 0, most = 4096) {
  const lines = [];
  for (let at = start; at < Math.min(data.length, start + most); at += 16) {
    const row = data.subarray(at, Math.min(at + 16, start + most));
    const codes = Array.from(row, (one) => one.toString(16).padStart(2, "0"));
    const text = Array.from(row, (one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${codes.slice(8).join(" ").padEnd(23)}  ${text}`);
  }
  return lines.join("\n");
}

export function fromBase64(text) {
  const raw = atob(text);
  return Uint8Array.from(raw, (one) => one.charCodeAt(0));
}

export const base64Of = (data) => btoa(Array.from(data, (one) => String.fromCharCode(one)).join(""));

// Return the bytes of a message's value from the API; null if it deletes its key.
export function valueBytes(message) {
  if (typeof message.text === "string") return new TextEncoder().encode(message.text);
  return typeof message.value === "string" ? fromBase64(message.value) : null;
}

// Change only the white space of JSON: numbers keep all their digits, and repeated names stay. Throws if the text is not
// JSON.
export function respaced(text, indent = "") {
  JSON.parse(text);
  const found = [];
  const line = () => indent && `\n${indent.repeat(depth)}`;
  let depth = 0;
  let before = "";
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\[^])*"|[{}[\],:]|[^\s"{}[\],:]+/g)) {
    const closes = token === "}" || token === "]";
    if (closes) depth -= 1;
    if (before === "{" || before === "[" ? !closes : closes || before === ",") found.push(line());
    found.push(token === ":" && indent ? ": " : token);
    if (token === "{" || token === "[") depth += 1;
    before = token;
  }
  return found.join("");
}

export function pretty(text) {
  try {
    return respaced(text, "  ");
  } catch {
    return null;
  }
}
