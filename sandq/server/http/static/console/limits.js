// Named limits, which groups of several topics share, and the groups that use them.

import { get, path, post, put, remove } from "./api.js";
import { changes } from "./group.js";
import { sandctl } from "./commands.js";
import { h } from "./dom.js";
import { count, instant } from "./format.js";
import { may, why } from "./rights.js";
import { groupHref } from "./topics.js";
import { act, badge, button, load, table } from "./ui.js";

const TOPIC = "sandq.limits";

export function limitsView(context) {
  const container = h("div", { class: "tabled" });
  const reload = () => load(container, async () => {
    const { limits } = await get("/limits", {}, { signal: context.signal });
    return Promise.all(limits.map((one) => get(path("limits", one.limit), {}, { signal: context.signal })));
  }, (limits) => {
    const manages = { allowed: may("manage", TOPIC), reason: why("manage", TOPIC) };
    const rows = table({
      caption: "Named limits", key: (row) => row.limit, sort: ["limit", false], empty: "There are none.",
      columns: [
        { key: "limit", label: "Limit", named: true, text: (row) => row.limit },
        { key: "max_in_flight", label: "In flight at most", kind: "number", text: (row) => (row.max_in_flight === null ? "–" : count(row.max_in_flight)), sort: (row) => row.max_in_flight ?? 0 },
        { key: "rate", label: "Rate", text: (row) => (row.rate ? [row.rate, row.unit].filter(Boolean).join(" ") : "–") },
        { key: "burst", label: "Burst", kind: "number", text: (row) => (row.burst === null ? "–" : count(row.burst)), sort: (row) => row.burst ?? 0 },
        { key: "unheard", label: "State", cell: state, mark: (row) => `${row.unheard} ${row.paused} ${row.paused_until} ${row.paused_by} ${row.unpaused}` },
        { key: "change", label: "", cell: (row) => h("div", { class: "row" }, button("Change…", () => change(row, reload), manages), row.paused ? button("Resume…", () => resume(row, reload), manages) : button("Pause…", () => pause(row, reload), manages), button("Delete…", () => drop(row, reload), { ...manages, kind: "danger" })), mark: (row) => JSON.stringify(row) },
      ],
    });
    rows.set(limits);
    const members = table({
      caption: "Groups that use limits", key: (row) => `${row.limit} ${row.topic} ${row.partition} ${row.group}`, sort: ["limit", false], page: 50, empty: "No group uses a limit.", filterLabel: "Filter groups", href: (row) => groupHref(row.topic, row.group),
      columns: [
        { key: "limit", label: "Limit", text: (row) => row.limit }, { key: "topic", label: "Topic", text: (row) => row.topic ?? "deleted" }, { key: "group", label: "Group", text: (row) => row.group },
        { key: "partition", label: "Partition", kind: "number", text: (row) => row.partition ?? "–", sort: (row) => row.partition },
        { key: "given", label: "May have in flight", kind: "number", text: (row) => count(row.given), sort: (row) => row.given },
        { key: "given_burst", label: "Units of the rate", kind: "number", text: (row) => count(row.given_burst), sort: (row) => row.given_burst },
      ],
    });
    members.set(limits.flatMap((limit) => (limit.members ?? []).map((one) => ({ ...one, limit: limit.limit }))));
    return [
      h("div", { class: "row" }, button("Set a limit…", () => change(null, reload), manages), h("button", { type: "button", onclick: reload }, "Refresh")),
      h("section", { class: "card" }, h("h2", {}, "Limits"), h("p", { class: "dim" }, "All groups that use a limit stay within it together. Choose it in the limits of a group."), rows.element),
      h("section", { class: "card" }, h("h2", {}, "Groups"), members.element),
    ];
  });
  reload();
  return [h("div", { class: "head" }, h("h1", {}, "Named limits")), container];
}

function state(row) {
  if (row.unheard === null) return badge("no leader", "bad");
  const missing = row.unheard || row.unpaused;
  const shown = row.paused ? [badge("paused", "warn"), h("span", { class: "dim" }, [row.paused_until ? `until ${instant(row.paused_until)}` : "until it is resumed", `by ${row.paused_by}`].join(", "))] : missing ? [] : [badge("in force", "good")];
  return h("div", { class: "row" }, ...shown, ...(missing ? [badge(`${count(missing)} unconfirmed`, "warn")] : []));
}

function pause(limit, done) {
  act({
    title: `Pause ${limit.limit}`, verb: "Pause", about: "No group that uses the limit gets messages. Consumers keep the messages that they hold.",
    fields: [{ name: "for", label: "For", placeholder: "10m", help: "Empty: until it is resumed." }],
    command: (values) => sandctl("limit pause", [limit.limit], { for: values.for || null }),
    run: async (values) => { await post(path("limits", limit.limit, "pause"), values.for ? { for: values.for } : {}); return "Limit paused"; },
    done,
  });
}

function resume(limit, done) {
  act({
    title: `Resume ${limit.limit}`, verb: "Resume", about: "Messages that have become due meanwhile are delivered first, within the limit.",
    command: () => sandctl("limit resume", [limit.limit]),
    run: async () => { await post(path("limits", limit.limit, "resume")); return "Limit resumed"; },
    done,
  });
}

function change(limit, done) {
  const body = (values) => Object.fromEntries(Object.entries({ max_in_flight: values.max_in_flight ? Number(values.max_in_flight) : null, rate: values.rate || null, burst: values.burst ? Number(values.burst) : null, unit: values.unit || null }).filter(([, value]) => value !== null));
  act({
    title: limit ? `Change ${limit.limit}` : "Set a limit", verb: "Set it", about: "After a change, nothing is delivered until all groups that use the limit have confirmed it, usually for milliseconds.",
    fields: [
      ...(limit ? [] : [{ name: "name", label: "Name", required: true }]),
      { name: "max_in_flight", label: "In flight at most", kind: "number", value: limit?.max_in_flight ?? "" },
      { name: "rate", label: "Rate", value: limit?.rate ?? "", placeholder: "90000/m" },
      { name: "burst", label: "Burst", kind: "number", value: limit?.burst ?? "", help: "Most messages at once after a pause; only with a rate." },
      { name: "unit", label: "Unit", value: limit?.unit ?? "", placeholder: "messages", help: "If the rate counts costs of messages, their unit, for example tokens." },
    ],
    command: (values) => {
      const given = body(values);
      return sandctl("limit set", [limit?.limit ?? values.name], { "max-in-flight": given.max_in_flight, rate: given.rate, burst: given.burst, unit: given.unit });
    },
    preview: (values) => changes(limit, { max_in_flight: null, rate: null, burst: null, unit: null, ...body(values) }),
    run: async (values) => { await put(path("limits", limit?.limit ?? values.name), body(values)); return "Limit set"; },
    done,
  });
}

function drop(limit, done) {
  act({
    title: `Delete ${limit.limit}`, verb: "Delete", about: "This is refused while a group uses the limit.",
    command: () => sandctl("limit delete", [limit.limit]),
    run: async () => { await remove(path("limits", limit.limit)); return "Limit deleted"; },
    done,
  });
}
