// Tabs for the settings of a topic, with a preview of changes, and for its partitions and their nodes.

import { get, patch, path, post } from "./api.js";
import { sandctl, settingOptions } from "./commands.js";
import { fill, h } from "./dom.js";
import { bytes, count, short } from "./format.js";
import { changes } from "./group.js";
import { may, why } from "./rights.js";
import { act, button, commandLine, field, load, say, table, valuesOf } from "./ui.js";
import TEXTS from "./setting_texts.js";

const COUNTS = {
  partitions: { says: "Their number can only grow.", unit: "a whole number" },
  replicas: { says: "Copies of each partition.", unit: "" },
};
const GROUPS = [
  ["Partitions", ["partitions", "replicas", "partition_delimiter"]],
  ["Deliveries", ["lease", "max_attempts", "max_snoozes", "ttl", "on_expiry", "dead_letter_topic", "push_targets", "group_ttl", "ageing", "precision"]],
  ["Back-off", ["backoff.kind", "backoff.first", "backoff.factor", "backoff.cap", "backoff.jitter_percent"]],
  ["Retention", ["delete_on_ack", "retention", "retain", "retain_bytes", "dead_retention", "max_dead_letters", "history", "tombstone_retention"]],
  ["Keys", ["dedup_window", "ordering", "max_in_flight_per_key"]],
  ["Limits", ["max_message_bytes", "max_delay", "max_lease", "max_request_rate", "max_request_burst"]],
];
const BACKOFF = "backoff.";
const SIZES = [["GiB", 1024 ** 3], ["MiB", 1024 ** 2], ["KiB", 1024]];
const NEEDS = { "backoff.first": (kind) => kind !== "none", "backoff.factor": (kind) => kind === "exponential", "backoff.cap": (kind) => kind !== "none", "backoff.jitter_percent": (kind) => kind !== "none" };

const labelOf = (name) => name.replace(BACKOFF, "").replace("_percent", "").replaceAll("_", " ");

// Return a size in the largest unit that represents it exactly: 65536 is 64KiB.
export function sizeText(value) {
  for (const [unit, size] of SIZES) if (value >= size && value % size === 0) return `${value / size}${unit}`;
  return String(value);
}

// Return a value as a user would type it; empty for none.
function written(name, value) {
  if (value === null || value === undefined) return "";
  return TEXTS[name]?.kind === "SIZE" ? sizeText(value) : String(value);
}

const same = (one, other) => one.replaceAll(" ", "").toLowerCase() === other.replaceAll(" ", "").toLowerCase();

// Convert typed text for the API: numbers and booleans as such, everything else as text, which the broker validates.
function read(name, text) {
  const typed = text.trim();
  if (typed === "" || (typed === "none" && TEXTS[name]?.allows_none)) return null;
  if (["TOPIC", "TEXT"].includes(TEXTS[name]?.kind)) return typed;
  if (["DURATION", "DURATION|auto", "SIZE", "RATE"].includes(TEXTS[name]?.kind) && !/^\d+$/.test(typed)) return typed.replace(/(\d) +(?=\D)/g, "$1");
  if (typed === "true" || typed === "false") return typed === "true";
  return /^-?\d+(\.\d+)?$/.test(typed) ? Number(typed) : typed;
}

function helpOf(name) {
  const text = TEXTS[name] ?? COUNTS[name] ?? {};
  const unit = [text.unit, text.allows_none && "none"].filter(Boolean).join(" or ");
  return [
    text.says, unit && `${unit[0].toUpperCase()}${unit.slice(1)}.`,
    text.default !== undefined && `Default: ${written(name, text.default) || "none"}.`, text.is_fixed && "It was fixed when the topic was created.",
  ].filter(Boolean).join(" ");
}

function fieldOf(name, value) {
  const text = TEXTS[name];
  const common = { name, label: labelOf(name), help: helpOf(name) };
  if (name === "replicas") return field({ ...common, kind: "select", options: [...new Set(["1", "3", String(value)])], value });
  if (name === "partitions") return field({ ...common, kind: "number", value });
  if (text?.choices.length) return field({ ...common, kind: "select", options: text.choices, value: String(value) });
  return field({ ...common, value: written(name, value), placeholder: text?.allows_none ? "none" : "" });
}

export function settingsTab(context, topic) {
  const container = h("div", { class: "card" });
  const allowed = may("manage", topic);
  const reload = () => load(container, () => get(path("topics", topic), {}, { signal: context.signal }), (record) => settingsForm(topic, record, allowed, reload));
  reload();
  return [container];
}

function settingsForm(topic, record, allowed, done) {
  const { backoff, tenants, ...plain } = record.settings;
  // All fields by name. Parts of the back-off are backoff.kind, backoff.first and so on.
  const before = { partitions: record.partitions, replicas: record.replicas, ...plain, ...Object.fromEntries(Object.entries(backoff ?? {}).map(([part, value]) => [`${BACKOFF}${part}`, value])) };
  const grouped = new Set(GROUPS.flatMap(([, names]) => names));
  const groups = [...GROUPS, ["Other", Object.keys(before).filter((name) => !grouped.has(name))]];
  const fields = new Map();
  const sections = groups.map(([title, names]) => {
    const here = names.filter((name) => name in before);
    if (!here.length) return null;
    return h("fieldset", {}, h("legend", {}, title), h("div", { class: "fields" }, here.map((name) => {
      const element = fieldOf(name, before[name]);
      const wrong = h("span", { class: "wrong", role: "alert" });
      const was = h("span", { class: "was" });
      element.append(was, wrong);
      fields.set(name, { element, was, wrong });
      return element;
    })));
  });
  const preview = h("div", { "aria-live": "polite" });
  const line = commandLine(sandctl("topic show", [topic]));
  const apply = h("button", { type: "submit", class: "primary", disabled: true }, "Change…");
  const form = h("form", { "aria-label": "Settings", class: "settings", novalidate: true }, sections,
    tenants && h("p", {}, "Tenants of the topic are in ", h("a", { href: `#/topics/${encodeURIComponent(topic)}/tenants` }, "a separate tab"), "."),
    preview, line, h("div", { class: "buttons" }, apply));
  for (const [name, { element }] of fields) if (!allowed || TEXTS[name]?.is_fixed) form.elements[name].disabled = true;

  // Changes to the topic: { counts, settings } for the API, and `then`, the new values by field.
  let change = { counts: {}, settings: {}, then: {} };
  function compare() {
    const found = { counts: {}, settings: {}, then: {} };
    for (const name of fields.keys()) {
      const input = form.elements[name];
      if (TEXTS[name]?.is_fixed || same(input.value, written(name, before[name]))) continue;
      const value = read(name, input.value);
      found.then[name] = value;
      if (name in COUNTS) found.counts[name] = value;
      else if (name.startsWith(BACKOFF)) (found.settings.backoff ??= {})[name.slice(BACKOFF.length)] = value;
      else found.settings[name] = value;
    }
    return found;
  }
  function show() {
    const kind = form.elements["backoff.kind"]?.value;
    for (const [name, { element, was }] of fields) {
      const isChanged = name in change.then;
      element.classList.toggle("changed", isChanged);
      fill(was, isChanged && `Changed; the current value is ${written(name, before[name]) || "none"}.`);
      if (NEEDS[name]) element.hidden = !NEEDS[name](kind) && !isChanged;
    }
    const isSame = !Object.keys(change.then).length;
    apply.disabled = isSame || !allowed;
    fill(preview, !isSame && changes(before, change.then));
    line.update(isSame ? sandctl("topic show", [topic]) : command(change));
  }
  const command = (of) => sandctl("topic update", [topic], { ...of.counts, ...settingOptions(of.settings) });
  // Show each error of the API at the field that it names. Return whether all errors had a field.
  function refuse(error) {
    let hasAll = true;
    let first = null;
    for (const one of error.details?.errors ?? []) {
      const name = one.where.replace(/^body\.(settings\.)?/, "");
      const found = fields.get(name) ?? (name === "backoff" ? fields.get("backoff.kind") : undefined);
      if (!found) { hasAll = false; continue; }
      const input = found.element.querySelector("input, select");
      fill(found.wrong, one.problem);
      found.element.hidden = false;
      input.setAttribute("aria-invalid", "true");
      first ??= input;
    }
    if (!first || !hasAll) return false;
    setTimeout(() => first.focus());
    return true;
  }
  form.addEventListener("input", (event) => {
    const found = fields.get(event.target.name);
    if (found) fill(found.wrong);
    event.target.removeAttribute("aria-invalid");
    change = compare();
    show();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (apply.disabled) return;
    const now = change;
    for (const { element, wrong } of fields.values()) {
      fill(wrong);
      element.querySelector("[aria-invalid]")?.removeAttribute("aria-invalid");
    }
    act({
      title: `Change ${topic}`, verb: "Change", about: now.counts.partitions ? "With more partitions, some keys are assigned to a different partition. The number of partitions cannot be reduced." : "The settings take effect at once, also for stored messages.",
      danger: Boolean(now.counts.partitions),
      preview: () => changes(before, now.then),
      command: () => command(now),
      run: async () => {
        await patch(path("topics", topic), { ...now.counts, ...(Object.keys(now.settings).length ? { settings: now.settings } : {}) });
        return "The settings were changed";
      },
      failed: refuse,
      done,
    });
  });
  show();
  const warnings = (record.warnings ?? []).map((one) => h("p", { class: "note" }, one));
  return [warnings, !allowed && h("p", { class: "note" }, why("manage", topic)), form];
}

export function partitionsTab(context, topic) {
  const container = h("div", { class: "card" });
  const leads = { allowed: may("cluster"), reason: why("cluster") };
  const reload = () => load(container, () => get("/cluster/partitions", { topic }, { signal: context.signal }), ({ partitions }) => {
    const rows = table({
      caption: `Partitions of ${topic}`, key: (row) => String(row.partition), sort: ["partition", false], page: 100,
      columns: [
        { key: "partition", label: "Partition", text: (row) => row.partition, sort: (row) => row.partition },
        { key: "leader", label: "Led by", text: (row) => row.leader ?? "no leader", state: (row) => (row.leader ? "" : "bad") },
        { key: "nodes", label: "Held by", text: (row) => row.nodes.join(", ") },
        { key: "steps", label: "In progress", text: (row) => row.steps.join("; ") },
        { key: "messages", label: "Messages", kind: "number", text: (row) => short(row.messages), sort: (row) => row.messages },
        { key: "delayed", label: "Not due", kind: "number", wide: true, text: (row) => short(row.delayed), sort: (row) => row.delayed },
        { key: "bytes", label: "Bytes", kind: "number", wide: true, text: (row) => bytes(row.bytes), sort: (row) => row.bytes },
        { key: "ahead", label: "Clock ahead", kind: "number", wide: true, text: (row) => (row.ahead_ms ? `${count(row.ahead_ms)} ms` : "–"), state: (row) => (row.ahead_ms > 1000 ? "bad" : "") },
        { key: "lead", label: "Lead", cell: (row) => button("Transfer…", () => transfer(topic, row, reload), leads), mark: (row) => `${row.leader} ${row.nodes.join()}` },
      ],
    });
    rows.set(partitions);
    return [rows.element, h("div", { class: "row" }, h("button", { type: "button", onclick: reload }, "Refresh"))];
  });
  reload();
  return [container, commandLine(sandctl("cluster partitions", [], { topic }))];
}

function transfer(topic, row, done) {
  const others = row.nodes.filter((node) => node !== row.leader);
  if (!others.length) return say(`Only ${row.leader ?? "one node"} holds it: no other node can lead it`, "note");
  act({
    title: `Transfer partition ${row.partition}`, verb: "Transfer", about: `Its leader is ${row.leader ?? "unknown"}. Consumers switch to the new leader automatically.`,
    fields: [{ name: "node", label: "Node", kind: "select", options: others }],
    command: (values) => sandctl("cluster transfer", [topic, row.partition, values.node]),
    run: async (values) => { await post("/cluster/transfer", { topic, partition: row.partition, node: values.node }); return `${values.node} leads it`; },
    done,
  });
}
