// Settings of a topic, changed with a preview of what changes; its partitions, and who holds them.

import { get, patch, path, post } from "./api.js";
import { sandctl, settingOptions } from "./commands.js";
import { fill, h } from "./dom.js";
import { bytes, count, short } from "./format.js";
import { changes } from "./group.js";
import { may, why } from "./rights.js";
import { act, button, commandLine, field, load, say, table, valuesOf } from "./ui.js";

const FIXED = new Set(["ordering", "partition_delimiter"]);

const shown = (value) => (value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

// What was typed, as the kind of value that it was. Throws where JSON is none.
function read(text, before) {
  const typed = text.trim();
  if (typed === "") return null;
  if (before !== null && typeof before === "object") return JSON.parse(typed);
  if (typeof before === "boolean") return typed === "true";
  if (typeof before === "number" || /^-?\d+$/.test(typed)) return Number(typed);
  return typed;
}

export function settingsTab(context, topic) {
  const place = h("div", { class: "card" });
  const allowed = may("manage", topic);
  const ask = () => load(place, () => get(path("topics", topic), {}, { signal: context.signal }), (record) => {
    const settings = record.settings;
    const names = Object.keys(settings);
    const preview = h("div", { "aria-live": "polite" });
    const line = commandLine("");
    const wrong = h("p", { class: "wrong", role: "alert" });
    const apply = h("button", { type: "submit", class: "primary", disabled: true }, "Change…");
    const form = h("form", { "aria-label": "Settings" },
      h("div", { class: "fields" },
        field({ name: "partitions", label: "partitions", kind: "number", value: record.partitions, help: "More; never fewer." }),
        field({ name: "replicas", label: "replicas", kind: "select", options: ["1", "3", ...(record.replicas === 1 || record.replicas === 3 ? [] : [String(record.replicas)])], value: record.replicas }),
        names.map((name) => {
          const value = settings[name];
          const label = name.replaceAll("_", " ");
          if (typeof value === "boolean") return field({ name, label, kind: "select", options: ["true", "false"], value: String(value) });
          return field({ name, label, value: shown(value), placeholder: "none", help: FIXED.has(name) ? "It stays as it was made." : null });
        })),
      preview, wrong, line, h("div", { class: "buttons" }, apply));
    for (const name of FIXED) if (form.elements[name]) form.elements[name].disabled = true;
    let changed = {};
    let counts = {};
    form.addEventListener("input", () => {
      const values = valuesOf(form);
      changed = {};
      counts = {};
      fill(wrong);
      try {
        for (const name of names) {
          if (FIXED.has(name)) continue;
          const now = read(values[name], settings[name]);
          if (shown(now) !== shown(settings[name])) changed[name] = now;
        }
        for (const name of ["partitions", "replicas"]) if (Number(values[name]) !== record[name]) counts[name] = Number(values[name]);
      } catch (error) {
        fill(wrong, error.message);
      }
      const all = { ...counts, ...changed };
      const isSame = !Object.keys(all).length;
      apply.disabled = isSame || !allowed;
      fill(preview, isSame ? null : changes({ ...settings, partitions: record.partitions, replicas: record.replicas }, all));
      line.update(sandctl("topic update", [topic], isSame ? {} : { ...counts, ...settingOptions(changed) }));
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (apply.disabled) return;
      const [nowChanged, nowCounts] = [changed, counts];
      act({
        title: `Change ${topic}`, verb: "Change", about: counts.partitions ? "With more partitions some keys choose another one than before; they cannot become fewer again." : "It holds at once, for messages that are stored already as well.",
        danger: Boolean(counts.partitions),
        preview: () => changes({ ...settings, partitions: record.partitions, replicas: record.replicas }, { ...nowCounts, ...nowChanged }),
        command: () => sandctl("topic update", [topic], { ...nowCounts, ...settingOptions(nowChanged) }),
        run: async () => {
          await patch(path("topics", topic), { ...nowCounts, ...(Object.keys(nowChanged).length ? { settings: nowChanged } : {}) });
          return "The settings hold";
        },
        done: ask,
      });
    });
    line.update(sandctl("topic show", [topic]));
    const warnings = (record.warnings ?? []).map((one) => h("p", { class: "note" }, one));
    return [warnings, !allowed && h("p", { class: "note" }, why("manage", topic)), form];
  });
  ask();
  return [place];
}

export function partitionsTab(context, topic) {
  const place = h("div", { class: "card" });
  const leads = { allowed: may("cluster"), reason: why("cluster") };
  const ask = () => load(place, () => get("/cluster/partitions", { topic }, { signal: context.signal }), ({ partitions }) => {
    const rows = table({
      caption: `Partitions of ${topic}`, key: (row) => String(row.partition), sort: ["partition", false], page: 100,
      columns: [
        { key: "partition", label: "Partition", text: (row) => row.partition, sort: (row) => row.partition },
        { key: "leader", label: "Led by", text: (row) => row.leader ?? "nobody", state: (row) => (row.leader ? "" : "bad") },
        { key: "nodes", label: "Held by", text: (row) => row.nodes.join(", ") },
        { key: "steps", label: "Under way", text: (row) => row.steps.join("; ") },
        { key: "messages", label: "Messages", kind: "number", text: (row) => short(row.messages), sort: (row) => row.messages },
        { key: "delayed", label: "Not due", kind: "number", wide: true, text: (row) => short(row.delayed), sort: (row) => row.delayed },
        { key: "bytes", label: "Bytes", kind: "number", wide: true, text: (row) => bytes(row.bytes), sort: (row) => row.bytes },
        { key: "ahead", label: "Clock ahead", kind: "number", wide: true, text: (row) => (row.ahead_ms ? `${count(row.ahead_ms)} ms` : "–"), state: (row) => (row.ahead_ms > 1000 ? "bad" : "") },
        { key: "lead", label: "Lead", cell: (row) => button("Move the lead…", () => transfer(topic, row, ask), leads), mark: (row) => `${row.leader} ${row.nodes.join()}` },
      ],
    });
    rows.set(partitions);
    return [rows.element, h("div", { class: "row" }, h("button", { type: "button", onclick: ask }, "Refresh"))];
  });
  ask();
  return [place, commandLine(sandctl("cluster partitions", [], { topic }))];
}

function transfer(topic, row, done) {
  const others = row.nodes.filter((node) => node !== row.leader);
  if (!others.length) return say(`${row.leader ?? "One node"} alone holds it: nobody else can lead it`, "note");
  act({
    title: `Who leads partition ${row.partition}`, verb: "Let it lead", about: `${row.leader ?? "Nobody"} leads it now. Consumers go to the new leader by themselves.`,
    fields: [{ name: "node", label: "Node", kind: "select", options: others }],
    command: (values) => sandctl("cluster transfer", [topic, row.partition, values.node]),
    run: async (values) => { await post("/cluster/transfer", { topic, partition: row.partition, node: values.node }); return `${values.node} leads it`; },
    done,
  });
}
