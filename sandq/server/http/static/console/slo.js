// Lateness of messages, compared with the objective.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, instant, milliseconds, span } from "./format.js";
import { topicHref } from "./topics.js";
import { badge, commandLine, facts, load, table, tile } from "./ui.js";

const percent = (share, digits = 3) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(digits).replace(/\.?0+$/, "")} %`);

export function sloView(context) {
  const place = h("div", { class: "tabled" });
  const ask = () => load(place, () => get("/slo", {}, { signal: context.signal }), (told) => {
    const tiles = [
      ["Target", percent(told.target), ""], ["In time", percent(told.in_time), told.in_time !== null && told.in_time < told.target ? "bad" : ""],
      ["Budget left", percent(told.budget_left, 1), told.budget_left === null ? "" : told.budget_left < 0 ? "bad" : told.budget_left < 0.25 ? "warn" : ""],
      ["Deliveries", count(told.deliveries), ""], ["Late", count(told.late), ""], ["Early", count(told.early), told.early ? "bad" : ""],
    ].map(([name, text, state]) => {
      const one = tile(name);
      one.set(text, state);
      return one.element;
    });
    const most = Math.max(...told.histogram.map((one) => one.deliveries), 1);
    const histogram = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Histogram of lateness" }, h("table", {},
      h("caption", { class: "unseen" }, "Histogram of lateness"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Late by up to"), h("th", { scope: "col", class: "number" }, "Deliveries"), h("th", { scope: "col" }, "Share"))),
      h("tbody", {}, told.histogram.filter((one) => one.deliveries > 0).map((one) => {
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
    nodes.set(told.nodes);
    const topics = table({
      caption: "Topics that were late", key: (row) => row.topic, sort: ["late", true], href: (row) => topicHref(row.topic), empty: "None was late.",
      columns: [
        { key: "topic", label: "Topic", text: (row) => row.topic }, { key: "late", label: "Late", kind: "number", text: (row) => count(row.late), sort: (row) => row.late },
        { key: "deliveries", label: "Deliveries", kind: "number", text: (row) => count(row.deliveries), sort: (row) => row.deliveries },
      ],
    });
    topics.set(told.topics.filter((row) => row.late > 0));
    document.documentElement.dataset.shown = "slo";
    return [
      h("p", { class: "dim" }, `A delivery is in time within ${milliseconds(told.lateness_ms)}, if a consumer had credit when it was due. Window: ${span(told.window_ms)}, counted since ${instant(told.since_ms)}.`),
      h("dl", { class: "tiles" }, tiles),
      h("p", {}, badge(told.is_proven ? "proven" : "not proven", told.is_proven ? "good" : "warn"), " ", told.is_proven ? "All nodes answered, and their clocks are and were trusted." : told.doubts.join("; ")),
      h("div", { class: "columns" },
        h("section", { class: "card" }, h("h2", {}, "Lateness"), told.deliveries ? histogram : h("p", { class: "dim" }, "Nothing was delivered yet.")),
        h("section", { class: "card" }, h("h2", {}, "Burn rate of the budget"), h("p", { class: "dim" }, "1 uses the whole budget within the window."), facts(Object.entries(told.burn_rates).map(([over, rate]) => [`last ${over}`, rate === null ? "–" : rate.toFixed(2)]))),
        h("section", { class: "card" }, h("h2", {}, "Nodes"), nodes.element),
        h("section", { class: "card" }, h("h2", {}, "Topics that were late"), h("p", { class: "dim" }, "Since the nodes started."), topics.element)),
    ];
  });
  ask();
  return [h("div", { class: "head" }, h("h1", {}, "Lateness"), h("div", { class: "acts" }, h("button", { type: "button", onclick: ask }, "Refresh"))), place, commandLine("sandctl slo")];
}
