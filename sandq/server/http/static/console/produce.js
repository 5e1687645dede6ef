// Produce a message with a form, and show the equivalent command line.

import { path, post } from "./api.js";
import { sandctl } from "./commands.js";
import { respaced, typed } from "./format.js";
import { act } from "./ui.js";

// Parse lines of `name=value` as headers. Throws if a line is malformed.
export function headersOf(text) {
  const found = Object.create(null);
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`headers: ${line} is not name=value`);
    found[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  return found;
}

export const headerLines = (text) => text.split("\n").filter((line) => line.trim());

export function valueOf(kind, text) {
  if (kind === "json") return { text: respaced(text) }; // not parsed: numbers would lose digits
  return kind === "base64" ? { value: text.replace(/\s/g, "") } : { text };
}

export const VALUE_KINDS = [["text", "Text"], ["json", "JSON"], ["base64", "Base64 (bytes)"]];

// Return a text as a text field would: so an unchanged field compares equal.
export const asTyped = (text) => text.replace(/\r\n?/g, "\n");

// Return a value as arguments of a command line. Bytes must come from a file.
export function payload(kind, text) {
  if (kind === "base64") return { positional: [], options: { file: "value.bin" } };
  let content = text;
  if (kind === "json") {
    try {
      content = respaced(text);
    } catch {
      // the error is shown when it is sent
    }
  }
  return { positional: [content], options: {} };
}

export function whenOf({ when, at, delay }) {
  if (when === "delay") return { delay };
  return when === "at" ? { deliver_at: typed(at).toISOString() } : {};
}

export const WHEN_FIELDS = (value, now = "Now") => [
  { name: "when", label: "When", kind: "select", value, options: [["now", now], ["delay", "After a delay"], ["at", "At a time"]] },
  { name: "delay", label: "Delay", placeholder: "1h30m", help: "90s, 5m, 2h, 1d", shownIf: (values) => values.when === "delay" },
  { name: "at", label: "Time", kind: "datetime-local", help: "In the zone that the top of the page shows.", shownIf: (values) => values.when === "at" },
];

export function whenOptions({ when, at, delay }) {
  if (when === "delay") return { in: delay || "DELAY" };
  if (when !== "at") return {};
  const found = typed(at);
  return { at: Number.isNaN(found.getTime()) ? "2030-01-31T08:00:00Z" : found.toISOString() };
}

const isDebounced = (values) => Boolean(values.unique_key) && values.on_conflict === "debounce";
const isThrottled = (values) => Boolean(values.unique_key) && values.on_conflict === "throttle";
const waits = (values) => Boolean(values.backoff) && values.backoff !== "none";

export function produce(topic, kind) {
  const ranked = kind === "priority" || kind === "fair";
  act({
    title: `Produce to ${topic}`, verb: "Produce",
    fields: [
      { name: "value", label: "Value", kind: "textarea", rows: 5 },
      { name: "kind", label: "Format", kind: "select", options: VALUE_KINDS, value: "text" },
      { name: "key", label: "Key", required: kind === "compacted", help: "Messages with the same key go to the same partition." },
      ...(kind === "compacted" ? [] : WHEN_FIELDS("now")),
      ...(kind === "compacted" ? [] : [
        { name: "unique_key", label: "Unique key", help: "Only one pending message may have it." },
        { name: "on_conflict", label: "If it is taken", kind: "select", options: [["reject", "reject this message"], ["replace", "replace the other message"], ["replace_pending", "replace it if no group has received it"], ["ignore", "keep the other message"], ["debounce", "replace it, or send both if a worker holds it"], ["throttle", "send one in a window"]], value: "reject", shownIf: (values) => values.unique_key !== "" },
        { name: "max_wait", label: "Deliver at the latest after", placeholder: "no limit", help: "Counted from the first message of the series: 1m, 1h.", shownIf: isDebounced },
        { name: "window", label: "Window", placeholder: "1m", help: "Counted from the send: 1m, 1h.", shownIf: isThrottled },
        { name: "edge", label: "Of each window, send", kind: "select", options: [["leading", "the first message"], ["both", "the first message, and the newest at the end"]], value: "leading", shownIf: isThrottled },
      ]),
      { name: "ttl", label: "Time to live", placeholder: "none" },
      ...(kind === "compacted" ? [] : [
        { name: "max_attempts", label: "Attempts at most", placeholder: "the group's or topic's", help: "A number, or none." },
        { name: "cost", label: "Cost", kind: "number", placeholder: "1", help: "Counts for groups whose rate has a unit." },
        { name: "backoff", label: "Back-off", kind: "select", value: "", options: [["", "the group's or topic's"], "exponential", "fixed", "linear", "none"] },
        { name: "first", label: "First wait", placeholder: "1s", shownIf: waits },
        { name: "cap", label: "Longest wait", placeholder: "10m", shownIf: waits },
      ]),
      { name: "headers", label: "Headers", kind: "textarea", rows: 2, placeholder: "name=value" },
      ...(ranked ? [{ name: "priority", label: "Priority", kind: "number", placeholder: "0", help: "Lower values are delivered first." }] : []),
      ...(kind === "fair" ? [{ name: "tenant", label: "Tenant", placeholder: "default" }] : []),
    ],
    command: (values) => {
      const content = payload(values.kind, values.value);
      return sandctl("produce", [topic, ...content.positional], {
        ...content.options, key: values.key, ...whenOptions(values), "unique-key": values.unique_key,
        "on-conflict": values.unique_key && values.on_conflict !== "reject" ? values.on_conflict : null,
        ...(isDebounced(values) ? { "max-wait": values.max_wait } : {}),
        ...(isThrottled(values) ? { window: values.window || "WINDOW", edge: values.edge === "leading" ? null : values.edge } : {}),
        ttl: values.ttl, header: headerLines(values.headers), priority: values.priority, tenant: values.tenant,
        "max-attempts": values.max_attempts, cost: values.cost, backoff: values.backoff,
        ...(waits(values) ? { "backoff-first": values.first, "backoff-cap": values.cap } : {}),
      });
    },
    run: async (values) => {
      const headers = headersOf(values.headers);
      const body = {
        ...valueOf(values.kind, values.value), ...whenOf(values),
        ...(values.key ? { key: values.key } : {}), ...(values.ttl ? { ttl: values.ttl } : {}),
        ...(Object.keys(headers).length ? { headers } : {}),
        ...(values.unique_key ? { unique_key: values.unique_key, on_conflict: values.on_conflict } : {}),
        ...(isDebounced(values) && values.max_wait ? { max_wait: values.max_wait } : {}),
        ...(isThrottled(values) ? { window: values.window || null, edge: values.edge } : {}),
        ...(values.priority ? { priority: Number(values.priority) } : {}), ...(values.tenant ? { tenant: values.tenant } : {}),
        ...(values.max_attempts ? { max_attempts: values.max_attempts === "none" ? "none" : Number(values.max_attempts) } : {}),
        ...(values.cost ? { cost: Number(values.cost) } : {}),
        ...(values.backoff ? { backoff: { kind: values.backoff, ...(waits(values) && values.first ? { first: values.first } : {}), ...(waits(values) && values.cap ? { cap: values.cap } : {}) } } : {}),
      };
      const stored = await post(path("topics", topic), body);
      return `Stored as ${stored.id} in partition ${stored.partition}`;
    },
  });
}
