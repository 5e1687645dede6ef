// The overview of all topics, and the findings that need attention.

import { post } from "./api.js";
import { sandctl, settingOptions } from "./commands.js";
import { fill, h, setText } from "./dom.js";
import { ago, bytes, count, milliseconds, nowMs, plural, rate, short, span } from "./format.js";
import { may, why } from "./rights.js";
import { act, badge, button, commandLine, loading, table, tile, withPages } from "./ui.js";

export const topicHref = (topic, tab) => `#/topics/${encodeURIComponent(topic)}${tab ? `/${tab}` : ""}`;
export const groupHref = (topic, group, tab) => `${topicHref(topic)}/groups/${encodeURIComponent(group)}${tab ? `/${tab}` : ""}`;

const lateState = (value) => (value === null ? "dim" : value > 1000 ? "bad" : value > 100 ? "warn" : "");

export function topicsView(context) {
  const tiles = {
    topics: tile("Topics"), pending: tile("Not due yet", "Delayed messages"), lag: tile("Lag", "Messages that are due and not acked, for the group with the largest lag of each topic"),
    in: tile("In / s"), out: tile("Delivered / s"), late: tile("Late, p99", "Lateness of first deliveries in the last minute, of the worst topic"),
    dead: tile("Dead letters"), bytes: tile("Bytes"),
  };
  const rows = table({
    caption: "Topics", filterLabel: "Filter topics", key: (row) => row.topic, href: (row) => topicHref(row.topic), page: 50, sort: ["topic", false],
    empty: "There is no topic yet. Create one, or produce to one that is created automatically.",
    columns: [
      { key: "topic", label: "Topic", text: (row) => row.topic, sort: (row) => row.topic },
      { key: "kind", label: "Kind", wide: true, text: (row) => row.kind },
      { key: "partitions", label: "Partitions", kind: "number", wide: true, text: (row) => (row.without_leader ? `${row.partitions - row.without_leader}/${row.partitions}` : count(row.partitions)), sort: (row) => row.partitions, state: (row) => (row.without_leader ? "bad" : ""), title: (row) => (row.without_leader ? `${row.without_leader} have no leader, or one that does not report` : "") },
      { key: "in", label: "In / s", kind: "number", text: (row) => rate(row.in_per_s), sort: (row) => row.in_per_s },
      { key: "out", label: "Out / s", kind: "number", wide: true, text: (row) => rate(row.out_per_s), sort: (row) => row.out_per_s },
      { key: "lag", label: "Lag", kind: "number", text: (row) => short(row.lag), sort: (row) => row.lag, state: (row) => (row.lag ? (row.stalled ? "bad" : "") : "dim") },
      { key: "oldest", label: "Oldest", kind: "number", wide: true, text: (row) => (row.oldest_at ? span(nowMs() - Date.parse(row.oldest_at)) : "–"), sort: (row) => (row.oldest_at ? nowMs() - Date.parse(row.oldest_at) : -1), title: (row) => `The oldest message that is due and not acked: ${ago(row.oldest_at)}`, state: (row) => (row.oldest_at ? "" : "dim") },
      { key: "late", label: "Late p99", kind: "number", wide: true, text: (row) => milliseconds(row.late_p99_ms), sort: (row) => row.late_p99_ms ?? -1e9, state: (row) => lateState(row.late_p99_ms) },
      { key: "delayed", label: "Not due", kind: "number", text: (row) => short(row.delayed), sort: (row) => row.delayed, state: (row) => (row.delayed ? "" : "dim") },
      { key: "dead", label: "Dead", kind: "number", wide: true, text: (row) => short(row.dead), sort: (row) => row.dead, state: (row) => (row.dead ? "warn" : "dim") },
      { key: "bytes", label: "Bytes", kind: "number", wide: true, text: (row) => bytes(row.bytes), sort: (row) => row.bytes },
      { key: "groups", label: "Groups", kind: "number", wide: true, text: (row) => (row.stalled ? `${row.groups}, ${row.stalled} stalled` : count(row.groups)), sort: (row) => row.groups, state: (row) => (row.stalled ? "warn" : "") },
    ],
  });
  const over = h("span", { class: "dim" });
  const findings = findingsCard();
  const body = h("div", { class: "card" }, loading());
  context.onLive((live) => {
    const all = [...live.topics.values()];
    const sum = (name) => all.reduce((total, row) => total + (row[name] ?? 0), 0);
    const late = all.map((row) => row.late_p99_ms).filter((value) => value !== null);
    tiles.topics.set(count(all.length));
    tiles.pending.set(short(sum("delayed")));
    tiles.lag.set(short(sum("lag")));
    tiles.in.set(rate(sum("in_per_s")));
    tiles.out.set(rate(sum("out_per_s")));
    const worst = late.length ? Math.max(...late) : null;
    tiles.late.set(milliseconds(worst), lateState(worst));
    tiles.dead.set(short(sum("dead")), sum("dead") ? "warn" : "");
    tiles.bytes.set(bytes(sum("bytes")));
    setText(over, `Rates: the last ${Math.round(live.overview.over_ms / 1000)} s; lateness: the last minute`);
    rows.set(all);
    if (body.firstElementChild !== rows.element) fill(body, rows.element);
    findings.set(live.cluster?.findings ?? []);
    document.documentElement.dataset.shown = "topics";
  });
  return [
    h("div", { class: "head" }, h("h1", {}, "Topics"), over,
      h("div", { class: "acts" }, button("Create a topic…", () => createTopic(), { allowed: may("manage"), reason: why("manage"), kind: "primary" }))),
    h("dl", { class: "tiles" }, Object.values(tiles).map((one) => one.element)),
    findings.element, body, commandLine("sandctl topic list"),
  ];
}

export function findingsCard() {
  const list = h("ul", { class: "findings" });
  const name = h("h2", {}, "Needs attention");
  // Doctor also checks what the overview lacks: outboxes, certificates, and groups beyond the 50 with the largest lag.
  const element = h("section", { class: "card", hidden: true, "aria-label": "Needs attention" }, name, list, commandLine("sandctl doctor", "Check everything"));
  let last = "";
  return {
    element,
    set(found) {
      const mark = JSON.stringify(found);
      if (mark === last) return;
      last = mark;
      element.hidden = !found.length;
      setText(name, `Needs attention (${found.length})`);
      const line = (one) => h("li", {}, badge(one.state === "failed" ? "failed" : "warning", one.state === "failed" ? "bad" : "warn"),
        h("div", {}, one.topic ? h("a", { href: one.group ? groupHref(one.topic, one.group, one.what === "dead letters" ? "dead" : undefined) : topicHref(one.topic) }, one.found) : one.found, h("small", {}, ...withPages(one.todo))));
      fill(list, found.slice(0, 4).map(line), found.length > 4 && h("li", {}, h("details", {}, h("summary", {}, `${found.length - 4} more`), h("ul", { class: "findings" }, found.slice(4).map(line)))));
    },
  };
}

// Names of settings that can only be set at creation. The console leaves most of them to sandctl.
const settled = (texts) => {
  const names = Object.keys(texts).filter((name) => texts[name].is_fixed);
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
};

async function createTopic() {
  const { default: texts } = await import("./setting_texts.js");
  act({
    title: "Create a topic", verb: "Create",
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "orders" },
      { name: "kind", label: "Kind", kind: "select", value: "timer", options: [["timer", "timer: delivers each message at its time"], ["compacted", "compacted: keeps the last value of each key"], ["priority", "priority: the lowest number goes first"], ["fair", "fair: shared among tenants"]] },
      { name: "partitions", label: "Partitions", kind: "number", value: "3" },
      { name: "replicas", label: "Copies of each", kind: "select", options: [["", "3 with three nodes or more, else 1"], ["1", "1"], ["3", "3"]], value: "" },
      { name: "lease", label: "Lease", placeholder: "30s", help: `${texts.lease.says} ${settled(texts)} cannot be changed later.` },
    ],
    command: (values) => sandctl("topic create", [values.name || "NAME"], { kind: values.kind === "timer" ? null : values.kind, partitions: values.partitions === "1" ? null : values.partitions, replicas: values.replicas || null, ...settingOptions(values.lease ? { lease: values.lease } : {}) }),
    run: async (values) => {
      const made = await post("/topics", { name: values.name, kind: values.kind, partitions: Number(values.partitions), ...(values.replicas ? { replicas: Number(values.replicas) } : {}), settings: values.lease ? { lease: values.lease } : {} });
      location.hash = topicHref(made.name);
      return `Topic ${made.name} was created, with ${plural(made.partitions, "partition")} and ${plural(made.replicas, "replica")} of each`;
    },
  });
}
