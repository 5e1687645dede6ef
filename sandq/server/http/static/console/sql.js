// Run an SQL statement, show its rows and the equivalent command line.

import { post } from "./api.js";
import { sandctl } from "./commands.js";
import { fill, h, setText } from "./dom.js";
import { cut, milliseconds, plural } from "./format.js";
import { commandLine, failure, field, loading, table, valuesOf } from "./ui.js";

const EXAMPLES = [
  ["Topics", "SELECT topic, kind, partitions, messages, delayed, dead, bytes FROM topics ORDER BY messages DESC"],
  ["Groups", "SELECT * FROM groups ORDER BY lag DESC LIMIT 20"],
  ["Due within the hour", "SELECT deliver_at, `key`, text FROM messages\nWHERE topic = 'TOPIC' AND deliver_at BETWEEN NOW() AND NOW() + INTERVAL 1 HOUR\nORDER BY deliver_at LIMIT 100"],
  ["Columns of messages", "DESCRIBE messages"],
  ["Requests of a statement", "EXPLAIN SELECT * FROM messages WHERE topic = 'TOPIC' LIMIT 10"],
];

const shown = (cell) => (cell === null ? "NULL" : typeof cell === "object" ? (cell.base64 === undefined ? JSON.stringify(cell) : `base64 ${cell.base64}`) : String(cell));
const isNumber = (type) => /^(u?int|float|double|decimal)/.test(type);

// The last statement, until the page is closed.
let last = { statement: EXAMPLES[0][1], database: "sandq", limit: "1000", full_scan: false };

export function sqlView(context) {
  const answer = h("div", { class: "tabled" });
  const status = h("p", { class: "dim", role: "status" });
  const line = commandLine("");
  const statement = field({ name: "statement", label: "Statement", kind: "textarea", rows: 6, value: last.statement, help: "Statements are read-only. Press Ctrl+Enter to run." });
  const form = h("form", { class: "card" },
    h("div", { class: "fields" },
      statement,
      field({ name: "database", label: "Database", kind: "select", options: ["sandq", "z4", "information_schema"], value: last.database }),
      field({ name: "limit", label: "Rows at most", kind: "number", value: last.limit }),
      field({ name: "full_scan", label: "Read whole topics", kind: "checkbox", value: last.full_scan, help: "Allow it if no condition bounds the read." })),
    h("div", { class: "buttons" }, h("button", { type: "button", class: "stop", hidden: true }, "Stop"), h("button", { type: "submit", class: "primary" }, "Run")));
  const stop = form.querySelector(".stop");
  const run = form.querySelector("[type=submit]");
  let asking = null;

  const refresh = () => {
    last = valuesOf(form);
    line.update(sandctl("sql", [last.statement], { database: last.database === "sandq" ? null : last.database, "full-scan": last.full_scan, limit: last.limit === "1000" ? null : last.limit }));
  };
  async function execute() {
    if (asking) return;
    asking = new AbortController();
    context.signal.addEventListener("abort", () => asking?.abort());
    const began = performance.now();
    run.disabled = true;
    stop.hidden = false;
    setText(status, "");
    fill(answer, loading("Running…"));
    try {
      const found = await post("/sql", { ...last, limit: Number(last.limit) }, { signal: asking.signal });
      fill(answer, found.columns.length ? rowsOf(found) : h("p", { class: "dim" }, "Done; the statement has no result."));
      setText(status, `${plural(found.rows.length, "row")}${found.more ? ", and there are more" : ""}, in ${milliseconds(performance.now() - began)}`);
    } catch (error) {
      fill(answer, error.name === "AbortError" ? h("p", { class: "dim" }, "Stopped.") : failure(error));
    } finally {
      asking = null;
      run.disabled = false;
      stop.hidden = true;
    }
  }
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (form.reportValidity()) execute();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  stop.addEventListener("click", () => asking?.abort());
  refresh();
  document.documentElement.dataset.shown = "sql";
  return [
    h("div", { class: "head" }, h("h1", {}, "SQL"), h("span", { class: "dim" }, "Messages, groups, keys and the cluster, as they are now")),
    form,
    h("div", { class: "row" }, h("span", { class: "dim" }, "For example:"), EXAMPLES.map(([name, text]) => h("button", {
      type: "button",
      onclick: () => {
        const input = form.elements.statement;
        input.value = text;
        refresh();
        input.focus();
      },
    }, name))),
    h("div", { class: "card" }, status, answer),
    line,
  ];
}

function rowsOf(found) {
  const rows = table({
    caption: "Result", key: (row) => String(row.at), sort: null, page: 100, empty: "No row.", filterLabel: null,
    columns: found.columns.map((column, at) => ({
      key: String(at), label: column.name, kind: isNumber(column.type) ? "number" : "text",
      text: (row) => cut(shown(row.cells[at]), 300), state: (row) => (row.cells[at] === null ? "dim" : ""), title: (row) => (shown(row.cells[at]).length > 300 ? cut(shown(row.cells[at]), 2000) : ""),
    })),
  });
  rows.set(found.rows.map((cells, at) => ({ at, cells })));
  return rows.element;
}
