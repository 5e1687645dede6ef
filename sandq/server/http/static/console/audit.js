// The audit logs of all nodes, newest line first.

import { get } from "./api.js";
import { sandctl } from "./commands.js";
import { h, setText } from "./dom.js";
import { count, instant, plural } from "./format.js";
import { may } from "./rights.js";
import { commandLine, denied, field, load, problemText, say, table, valuesOf } from "./ui.js";
import { groupHref, topicHref } from "./topics.js";

const LINES = 1000; // maximum of one response
const KEPT = 5000; // newest lines that the page keeps

const about = (line) => Object.entries(line.about ?? {});
const text = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));

function aboutCell(line) {
  return about(line).map(([name, value], index) => {
    const href = name === "topic" ? topicHref(value) : name === "group" && line.about.topic ? groupHref(line.about.topic, value) : null;
    return [index ? ", " : "", `${name} `, href ? h("a", { href }, text(value)) : text(value)];
  });
}

export function auditView(context) {
  const head = h("div", { class: "head" }, h("h1", {}, "Audit log"));
  if (!may("security")) return [head, denied("security", "the audit log")];
  const container = h("div", { class: "card" });
  const status = h("p", { class: "dim", role: "status" });
  let lines = [];
  let position = null;
  let number = 0;
  const rows = table({
    caption: "Audit log", key: (line) => String(line.number), sort: ["time", true], page: 50, empty: "No line matches.",
    columns: [
      { key: "time", label: "Time", text: (line) => instant(line.time), sort: (line) => line.number },
      { key: "principal", label: "Who", text: (line) => line.principal ?? "" },
      { key: "request", label: "Request", text: (line) => line.request ?? "" },
      { key: "about", label: "About", cell: aboutCell, mark: (line) => JSON.stringify(line.about ?? null) },
      { key: "result", label: "Result", text: (line) => line.result ?? "", state: (line) => (["ok", undefined].includes(line.result) ? "" : "warn") },
      { key: "peer", label: "From", wide: true, text: (line) => [line.peer, line.gateway && `by ${line.gateway}`].filter(Boolean).join(" ") },
      { key: "node", label: "Node", wide: true, text: (line) => line.node ?? "" },
    ],
  });
  const filters = h("form", { class: "fields", "aria-label": "Filter the audit log", oninput: () => show(), onsubmit: (event) => event.preventDefault() },
    field({ name: "principal", label: "Who", placeholder: "token:billing" }), field({ name: "topic", label: "Topic", placeholder: "orders" }),
    field({ name: "request", label: "Request", placeholder: "topic_delete" }),
    field({ name: "result", label: "Result", kind: "select", options: [["", "all"], ["ok", "ok"], ["failed", "failed or refused"]] }));

  function show() {
    const wanted = valuesOf(filters);
    const has = (found, part) => !part || String(found ?? "").toLowerCase().includes(part.trim().toLowerCase());
    const found = lines.filter((line) => has(line.principal, wanted.principal) && has(line.about?.topic, wanted.topic) && has(line.request, wanted.request)
      && (!wanted.result || (line.result === "ok") === (wanted.result === "ok")));
    rows.set(found);
    setText(status, `${count(found.length)} of the newest ${plural(lines.length, "line")} of all nodes.`);
  }
  function add(log) {
    for (const line of log.lines) lines.push({ ...line, number: (number += 1) });
    lines = lines.slice(-KEPT);
    position = log.position;
  }
  const whole = () => load(container, () => get("/audit", { last: LINES }, { signal: context.signal }), (log) => {
    add(log);
    show();
    const gaps = [
      ...Object.entries(log.missing).map(([node, reason]) => `${node} does not answer: ${reason}`),
      ...Object.entries(log.lost).filter(([, lost]) => lost).map(([node, lost]) => `${node} could not keep ${plural(lost, "line")} since it started`),
    ];
    return [gaps.map((one) => h("p", { class: "note" }, one)), filters, status, rows.element];
  });
  // Load the lines after the position of the last response.
  async function newer() {
    if (position === null) return whole();
    try {
      add(await get("/audit", { last: LINES, after: position }, { signal: context.signal }));
      show();
    } catch (error) {
      if (error.name !== "AbortError") say(problemText(error), "bad");
    }
  }
  whole();
  head.append(h("div", { class: "acts" }, h("button", { type: "button", onclick: newer }, "Newer lines")));
  return [
    head, container,
    h("p", { class: "dim" }, `The page shows the newest ${count(LINES)} lines, and later ones. Older lines are in the files of each node (data_dir/audit).`),
    commandLine(sandctl("audit", [], { last: LINES })),
  ];
}
