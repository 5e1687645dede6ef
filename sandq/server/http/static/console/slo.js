// Lateness of messages, compared with the objective.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, instant, milliseconds, span } from "./format.js";
import { topicHref } from "./topics.js";
import { badge, commandLine, facts, load, table, tile } from "./ui.js";

const percent = (share, digits = 3) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(digits).replace(/\.?0+$/, "")} %`);

export function sloView(context) {
  const container = h("div", { class: "tabled" });
  const reload = () => load(container, () => get("/slo", {}, { signal: context.signal }), (report) => {
    const tiles = [
      ["Target", percent(report.target), ""], ["In time", percent(report.in_time), report.in_time !== null && report.in_time < report.target ? "bad" : ""],
      ["Budget left", percent(report.budget_left, 1), report.budget_left === null ? "" : report.budget_left < 0 ? "bad" : report.budget_left < 0.25 ? "warn" : ""],
      ["Deliveries", count(report.deliveries), ""], ["Late", count(report.late), ""], ["Early", count(report.early), report.early ? "bad" : ""],
    ].map(([name, text, state]) => {
      const one = tile(name);
      one.set(text, state);
      return one.element;
    });
    const most = Math.max(...report.histogram.map((one) => one.deliveries), 1);
    const histogram = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Histogram of lateness" }, h("table", {},
      h("caption", { class: "unseen" }, "Histogram of lateness"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Late by up to"), h("th", { scope: "col", class: "number" }, "Deliveries"), h("th", { scope: "col" }, "Share"))),
      h("tbody", {}, report.histogram.filter((one) => one.deliveries > 0).map((one) => {
        const meter = h("i", {});
        meter.style.width = `${(100 * one.deliveries) / most}%`;
        return h("tr", {}, h("th", { scope: "row" }, one.up_to_ms === null ? "more" : milliseconds(one.up_to_ms)), h("td", { class: "number" }, count(one.deliveries)), h("td", {}, h("div", { class: "meter", "aria-hidden": "true" }, meter)));
      }))));
    const nodes = table({
      caption: "Nodes", key: (row) => row.node, sort: ["node", false],
      columns: [
        { key: "node", label: "Node", text: (row) => row.node }, { key: "deliveries", label: "Deliveries", kind: "number", text: (row) => count(row.deliveries), sort: (row) => row.deliveries },
        { key: "late", label: "Late", kind: "number", text: (row) => count(row.late), sort: (row) => row.late }, { key: "unproven", label: "Unproven", kind: "number", wide: true, text: (row) => count(row.unproven) },
        { key: "clock", label: "Clock", cell: (row) => badge(row.clock_trusted ? "trusted" : "not trusted", row.clock_trusted ? "good" : "bad"), mark: (row) => String(row.clock_trusted), title: (row) => row.clock_reason ?? "" },
      ],
    });
    nodes.set(report.nodes);
    const topics = table({
      caption: "Topics that were late", key: (row) => row.topic, sort: ["late", true], href: (row) => topicHref(row.topic), empty: "None was late.",
      columns: [
        { key: "topic", label: "Topic", text: (row) => row.topic }, { key: "late", label: "Late", kind: "number", text: (row) => count(row.late), sort: (row) => row.late },
        { key: "deliveries", label: "Deliveries", kind: "number", text: (row) => count(row.deliveries), sort: (row) => row.deliveries },
      ],
    });
    topics.set(report.topics.filter((row) => row.late > 0));
    document.documentElement.dataset.shown = "slo";
    return [
      h("p", { class: "dim" }, `A delivery is in time within ${milliseconds(report.lateness_ms)}, if a consumer had credit when it was due. Window: ${span(report.window_ms)}, counted since ${instant(report.since_ms)}.`),
      h("dl", { class: "tiles" }, tiles),
      h("p", {}, badge(report.is_proven ? "proven" : "not proven", report.is_proven ? "good" : "warn"), " ", report.is_proven ? "All nodes answered, and their clocks are and were trusted." : report.doubts.join("; ")),
      h("div", { class: "columns" },
        h("section", { class: "card" }, h("h2", {}, "Lateness"), report.deliveries ? histogram : h("p", { class: "dim" }, "Nothing was delivered yet.")),
        h("section", { class: "card" }, h("h2", {}, "Burn rate of the budget"), h("p", { class: "dim" }, "1 uses the whole budget within the window."), facts(Object.entries(report.burn_rates).map(([over, rate]) => [`last ${over}`, rate === null ? "–" : rate.toFixed(2)]))),
        h("section", { class: "card" }, h("h2", {}, "Nodes"), nodes.element),
        h("section", { class: "card" }, h("h2", {}, "Topics that were late"), h("p", { class: "dim" }, "Since the nodes started."), topics.element)),
    ];
  });
  reload();
  return [h("div", { class: "head" }, h("h1", {}, "Lateness"), h("div", { class: "acts" }, h("button", { type: "button", onclick: reload }, "Refresh"))), container, commandLine("sandctl slo")];
}
