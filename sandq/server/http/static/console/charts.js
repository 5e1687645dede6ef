// Charts over time with uPlot. Each has the same data as a table, for screen readers.

import { fill, h } from "./dom.js";
import { count, instant, offsetMinutes } from "./format.js";
import { sandqColours } from "./colours.js";

let uPlot = null; // loaded with the first chart
const dark = matchMedia("(prefers-color-scheme: dark)");

// series: {label, values, colour, kind: "bars" | "line", width_s}, all in one unit; `x`: epoch seconds, ascending.
// `from`, `to`: range shown at first. `figure.set(x, values, from, to)` replaces the values, by series.
export function chart({ title, x, series, from, to, height = 200, text = count, signal }) {
  const container = h("div", { class: "plot" });
  const readout = h("p", { class: "readout", "aria-live": "off" });
  const holder = h("div", {
    class: "chart", role: "img", tabindex: 0, "aria-label": described(), onkeydown: onKey,
  }, container);
  const zoomed = (label, name, work) => h("button", { type: "button", class: "quiet", "aria-label": name, title: name, onclick: work }, label);
  const tools = h("div", { class: "tools", role: "group", "aria-label": `Zoom of ${title}` },
    zoomed("◀", "Earlier", () => move(-0.5)), zoomed("−", "Zoom out", () => zoom(2)), zoomed("+", "Zoom in", () => zoom(0.5)),
    zoomed("▶", "Later", () => move(0.5)), zoomed("All", "Show all", () => scale(from, to)));
  const listed = asTable(title, series, text, () => x);
  const figure = h("figure", { class: "figure" },
    h("figcaption", {}, h("span", { class: "name" }, title), legend(series), tools),
    holder, readout, listed);
  let plot = null;

  async function begin() {
    if (!uPlot) {
      document.head.append(h("link", { rel: "stylesheet", href: "console/uplot.css" }));
      uPlot = (await import("./uplot.js")).default;
    }
    if (!plot && holder.isConnected && !signal?.aborted) draw();
  }

  function draw() {
    const colours = sandqColours();
    const width = Math.max(holder.clientWidth, 120);
    const kept = plot && [plot.scales.x.min, plot.scales.x.max];
    if (plot) plot.destroy();
    const axis = { stroke: colours.dim, grid: { stroke: colours.line, width: 1 }, ticks: { stroke: colours.line, width: 1 }, font: "12px system-ui, sans-serif" };
    plot = new uPlot({
      width, height,
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { size: 6 } },
      padding: [12, 8, 0, 0],
      scales: { x: { time: true }, y: { range: (self, low, high) => [Math.min(low ?? 0, 0), Math.max(high ?? 1, 1) * 1.08] } },
      axes: [{ ...axis, values: times, space: 72 }, {
        ...axis, size: 58, values: (self, ticks) => ticks.map((one) => text(one)),
        ...(series.some((one) => one.kind === "bars") ? { incrs: WHOLE } : {}),
      }],
      series: [{}, ...series.map((one) => ({
        label: one.label, stroke: colours[one.colour], width: one.kind === "bars" ? 0 : 2, spanGaps: false,
        fill: one.kind === "bars" ? colours[one.colour] : undefined,
        points: { show: one.kind !== "bars" && one.values.filter((value) => value !== null).length < 60, size: 5 },
        paths: one.kind === "bars" ? bars(one) : undefined,
      }))],
      hooks: {
        setCursor: [(self) => {
          const at = self.cursor.idx;
          if (at === null || at === undefined) return fill(readout);
          const readings = series.filter((one) => one.values[at] !== null && one.values[at] !== undefined).map((one) => `${one.label} ${text(one.values[at])}`);
          return fill(readout, readings.length ? `${instant(x[at] * 1000)}: ${readings.join(", ")}` : "");
        }],
      },
    }, [x, ...series.map((one) => one.values)], container);
    const [low, high] = kept ?? [from, to];
    plot.setScale("x", { min: low, max: high });
  }

  // Bars are as wide as the time that they cover.
  function bars(one) {
    return (self, seriesAt) => {
      const data = self.data[seriesAt];
      const fillPath = new Path2D();
      const base = self.valToPos(0, "y", true);
      const wide = one.width_s;
      data.forEach((value, at) => {
        if (!value) return;
        const left = self.valToPos(self.data[0][at], "x", true);
        const right = self.valToPos(self.data[0][at] + (Array.isArray(wide) ? wide[at] : wide), "x", true);
        const top = self.valToPos(value, "y", true);
        const size = Math.max(right - left - 1, 1);
        fillPath.rect(left, top, size, base - top);
      });
      return { fill: fillPath, stroke: null };
    };
  }

  const scale = (min, max) => plot?.setScale("x", { min, max });
  function zoom(by) {
    if (!plot) return;
    const { min, max } = plot.scales.x;
    const middle = (min + max) / 2;
    scale(Math.max(middle - (middle - min) * by, from), Math.min(middle + (max - middle) * by, to));
  }
  function move(by) {
    if (!plot) return;
    const { min, max } = plot.scales.x;
    const step = Math.max(Math.min((max - min) * by, to - max), from - min);
    scale(min + step, max + step);
  }
  function onKey(event) {
    const done = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), 0: () => scale(from, to) }[event.key];
    if (!done) return;
    event.preventDefault();
    done();
  }

  function described() {
    return `${title}. ${summary(series, text)} Zoom: plus and minus; move: arrows; all: 0.`;
  }
  figure.set = (nextX, values, nextFrom, nextTo) => {
    const isZoomed = plot && (plot.scales.x.min !== from || plot.scales.x.max !== to);
    [x, from, to] = [nextX, nextFrom, nextTo];
    series.forEach((one, index) => { one.values = values[index]; });
    holder.setAttribute("aria-label", described());
    listed.update();
    if (!plot) return;
    const { min, max } = plot.scales.x;
    plot.setData([x, ...series.map((one) => one.values)], false);
    // Keep the range if the user has zoomed.
    scale(isZoomed ? min : from, isZoomed ? max : to);
  };

  const sized = new ResizeObserver(() => {
    if (!holder.isConnected || holder.clientWidth < 1) return;
    if (!plot) begin();
    else if (plot.width !== holder.clientWidth) plot.setSize({ width: holder.clientWidth, height });
  });
  sized.observe(holder);
  const repaint = () => plot && draw();
  dark.addEventListener("change", repaint);
  signal?.addEventListener("abort", () => {
    sized.disconnect();
    dark.removeEventListener("change", repaint);
    if (plot) plot.destroy();
    plot = null;
  });
  return figure;
}

// Steps of an axis of counts: only whole numbers.
const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

// Labels with hours and minutes. The first one, and the first of each day, also has the date.
function times(self, splits, axisAt, space, step) {
  const two = (part) => String(part).padStart(2, "0");
  let last = "";
  return splits.map((at) => {
    const when = new Date(at * 1000 - offsetMinutes(new Date(at * 1000)) * 60_000);
    const day = `${when.getUTCFullYear()}-${two(when.getUTCMonth() + 1)}-${two(when.getUTCDate())}`;
    const clock = `${two(when.getUTCHours())}:${two(when.getUTCMinutes())}${step < 60 ? `:${two(when.getUTCSeconds())}` : ""}`;
    const isNew = day !== last;
    last = day;
    return isNew ? `${clock}\n${day}` : clock;
  });
}

function legend(series) {
  return h("span", { class: "legend" }, series.map((one) => h("span", {}, h("i", { class: `swatch ${one.colour}`, "aria-hidden": "true" }), one.label)));
}

function summary(series, text) {
  return series.map((one) => {
    const known = one.values.filter((value) => value !== null && value !== undefined);
    if (one.kind !== "bars") return known.length ? `${one.label}: ${text(known.at(-1))} last, ${text(Math.max(...known))} at most.` : `${one.label}: none.`;
    return `${one.label}: ${count(known.reduce((sum, value) => sum + value, 0))} in all.`;
  }).join(" ");
}

function asTable(title, series, text, times) {
  const body = h("tbody");
  const show = () => {
    if (!fold.open) return;
    const rows = times().map((at, index) => [at, series.map((one) => one.values[index])]).filter(([, values]) => values.some((value) => value));
    fill(body, rows.slice(0, 200).map(([at, values]) => h("tr", {}, h("th", { scope: "row" }, instant(at * 1000)), values.map((value) => h("td", { class: "number" }, value === null || value === undefined ? "" : text(value))))),
      rows.length > 200 && h("tr", {}, h("td", { colspan: series.length + 1 }, `and ${count(rows.length - 200)} more`)));
  };
  const fold = h("details", { class: "astable", ontoggle: show },
  h("summary", {}, "As a table"),
  h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, h("table", {}, h("caption", { class: "unseen" }, title),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "From"), series.map((one) => h("th", { scope: "col", class: "number" }, one.label)))), body)));
  fold.update = show;
  return fold;
}
