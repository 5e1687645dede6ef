// Groups of all topics, or of one: their lag, and why some receive nothing.

import { get, path } from "./api.js";
import { sandctl } from "./commands.js";
import { h } from "./dom.js";
import { ago, count, cut, nowMs, short, span } from "./format.js";
import { groupHref } from "./topics.js";
import { badge, commandLine, load, table } from "./ui.js";

const standing = (row) => (row.paused ? badge("paused", "warn") : row.reason ? badge("stalled", "bad") : row.held_up_by?.length ? badge(`limited: ${row.held_up_by.join(", ")}`, "warn") : ["waiting", "probing"].includes(row.push) ? badge("receiver fails", "bad") : row.push ? badge("pushed", "good") : row.ready && !row.consumers && !row.leased ? badge("no consumer", "warn") : badge("active", "good"));

function groupTable(withTopic, caption) {
  return table({
    caption, filterLabel: "Filter groups", page: 100, sort: ["lag", true], key: (row) => `${row.group} ${row.topic}`, href: (row) => groupHref(row.topic, row.group), empty: "No group yet.",
    columns: [
      { key: "group", label: "Group", text: (row) => row.group },
      ...(withTopic ? [{ key: "topic", label: "Topic", text: (row) => row.topic }] : []),
      { key: "state", label: "State", text: (row) => row.reason ?? "", cell: standing, mark: (row) => JSON.stringify([row.paused, row.reason, row.held_up_by, row.ready > 0, row.consumers, row.leased > 0, row.push]), title: (row) => row.reason ?? "" },
      { key: "lag", label: "Lag", kind: "number", text: (row) => short(row.lag), sort: (row) => row.lag },
      { key: "oldest", label: "Oldest", kind: "number", wide: true, text: (row) => (row.oldest_at ? span(nowMs() - Date.parse(row.oldest_at)) : "–"), sort: (row) => (row.oldest_at ? nowMs() - Date.parse(row.oldest_at) : -1), title: (row) => (row.oldest_at ? ago(row.oldest_at) : "") },
      { key: "ready", label: "Ready", kind: "number", wide: true, text: (row) => short(row.ready), sort: (row) => row.ready },
      { key: "leased", label: "Leased", kind: "number", wide: true, text: (row) => short(row.leased), sort: (row) => row.leased },
      { key: "waiting", label: "Retrying", kind: "number", wide: true, text: (row) => short(row.waiting), sort: (row) => row.waiting },
      { key: "consumers", label: "Consumers", kind: "number", text: (row) => count(row.consumers), sort: (row) => row.consumers },
      { key: "dead", label: "Dead", kind: "number", text: (row) => short(row.dead), sort: (row) => row.dead, state: (row) => (row.dead ? "warn" : "dim") },
      { key: "why", label: "Why", wide: true, text: (row) => cut(row.reason ?? "", 90), title: (row) => row.reason ?? "" },
    ],
  });
}

export function groupsView(context) {
  const rows = groupTable(true, "Groups of all topics");
  const container = h("div", { class: "card" });
  const reload = () => load(container, async () => {
    const found = [];
    let after = null;
    do {
      const page = await get("/overview", { groups: true, limit: 1000, after }, { signal: context.signal });
      found.push(...page.groups);
      after = page.next;
    } while (after);
    return found;
  }, (found) => {
    rows.set(found);
    document.documentElement.dataset.shown = "groups";
    return rows.element;
  });
  reload();
  return [
    h("div", { class: "head" }, h("h1", {}, "Groups"), h("span", { class: "dim" }, "The 50 groups with the largest lag of each topic"), h("div", { class: "acts" }, h("button", { type: "button", onclick: reload }, "Refresh"))),
    container, commandLine("sandctl group list TOPIC"),
  ];
}

export function groupsOf(context, topic) {
  const rows = groupTable(false, `Groups of ${topic}`);
  const container = h("div", { class: "card" });
  const reload = () => load(container, async () => {
    const [{ groups }, { pushes }] = await Promise.all(["groups", "pushes"].map((name) => get(path("topics", topic, name), {}, { signal: context.signal })));
    const states = new Map(pushes.map((one) => [one.group, one.state]));
    return groups.map((one) => ({ ...one, push: states.get(one.group) }));
  }, (found) => {
    rows.set(found.map((one) => ({ ...one, topic, paused: /^(?!the limit ).*paused/.test(one.reason ?? ""), held_up_by: [], oldest_at: null })));
    return rows.element;
  });
  reload();
  return [container, h("div", { class: "row" }, h("button", { type: "button", onclick: reload }, "Refresh")), commandLine(sandctl("group list", [topic]))];
}
