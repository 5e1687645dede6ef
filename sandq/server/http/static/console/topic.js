// One topic: its timeline, and tabs for its contents and settings.

import { get, path, post, remove } from "./api.js";
import { chart } from "./charts.js";
import { sandctl } from "./commands.js";
import { fill, h, setText } from "./dom.js";
import { bytes, count, milliseconds, nowMs, plural, rate, short, span } from "./format.js";
import { live } from "./live.js";
import { may, why } from "./rights.js";
import { act, badge, button, commandLine, load, tile } from "./ui.js";
import { groupsOf } from "./groups.js";
import { keysTab } from "./keys.js";
import { messagesTab } from "./messages.js";
import { produce } from "./produce.js";
import { schedulesTab } from "./schedules.js";
import { partitionsTab, settingsTab } from "./settings.js";
import { tenantsTab } from "./tenants.js";
import { topicHref } from "./topics.js";

export function topicView(context, topic, tab = "timeline") {
  const tabs = [["timeline", "Timeline"], ["messages", "Messages"], ["groups", "Groups"], ["schedules", "Schedules"], ["keys", "Keys"], ["tenants", "Tenants"], ["settings", "Settings"], ["partitions", "Partitions"]];
  const strip = h("nav", { class: "tabs", "aria-label": `Of ${topic}` });
  const kind = badge("");
  const body = h("div", { class: "tabled" });
  const manages = { allowed: may("manage", topic), reason: why("manage", topic) };
  let shownKind = null;
  let first = true;

  function showTabs(of) {
    if (of === shownKind) return;
    shownKind = of;
    setText(kind, of ?? "…");
    const fits = ([name]) => (name === "keys" ? of === "compacted" : name === "tenants" ? of === "fair" : name === "schedules" ? of !== "compacted" : true);
    fill(strip, tabs.filter(fits).map(([name, text]) => h("a", { href: topicHref(topic, name), "aria-current": name === tab ? "page" : null }, text)));
  }
  showTabs(live.topics.get(topic)?.kind ?? null);
  context.onLive(() => {
    showTabs(live.topics.get(topic)?.kind ?? shownKind);
    if (first && live.overview) first = false;
  });

  // Hide the actions if the topic does not exist.
  const acts = h("div", { class: "acts" },
    button("Produce…", () => produce(topic, shownKind), { allowed: may("produce", topic), reason: why("produce", topic), kind: "primary" }),
    button("Purge…", () => purgeTopic(topic), { ...manages, kind: "danger" }),
    button("Delete…", () => deleteTopic(topic), { ...manages, kind: "danger" }));
  if (!live.topics.has(topic)) get(path("topics", topic), {}, { signal: context.signal }).catch((error) => { acts.hidden = error.status === 404; });

  const views = { timeline: timelineTab, messages: messagesTab, groups: groupsOf, schedules: schedulesTab, keys: keysTab, tenants: tenantsTab, settings: settingsTab, partitions: partitionsTab };
  const show = views[tab] ?? timelineTab;
  fill(body, show(context, topic));
  return [
    h("p", { class: "trail" }, h("a", { href: "#/" }, "Topics"), " / "),
    h("div", { class: "head" }, h("h1", {}, topic), kind, acts),
    strip, body,
  ];
}

async function held(topic) {
  const found = await get(path("topics", topic));
  const sum = (name) => found.stats.reduce((total, row) => total + (row[name] ?? 0), 0);
  return { messages: sum("messages"), delayed: sum("delayed"), dead: sum("dead"), bytes: sum("bytes"), keys: sum("keys"), partitions: found.partitions };
}

function purgeTopic(topic) {
  act({
    title: `Purge ${topic}…`, verb: "Purge", danger: true, typed: topic,
    about: "Removes all messages that are not leased: ready and delayed ones, and all dead letters. It cannot be undone.",
    count: async () => {
      const of = await held(topic);
      return `${plural(of.messages, "message")} (${count(of.delayed)} not due yet) and ${plural(of.dead, "dead letter")}, ${bytes(of.bytes)}. Messages that are leased or waiting for their next attempt stay.`;
    },
    command: () => sandctl("topic purge", [topic], { dead: true, yes: true }),
    run: async () => {
      const job = await post(path("topics", topic, "purge"), {});
      return `${plural(job.done, "message")} removed; ${count(job.too_late)} stay, because consumers have received them`;
    },
  });
}

function deleteTopic(topic) {
  act({
    title: `Delete ${topic}…`, verb: "Delete", danger: true, typed: topic,
    about: "Deletes the topic with all its messages, groups, schedules and settings. It cannot be undone.",
    count: async () => {
      const [of, groups] = await Promise.all([held(topic), get(path("topics", topic, "groups"))]);
      return `${plural(of.partitions, "partition")}, ${plural(of.messages, "message")}, ${plural(of.keys, "key")}, ${plural(of.dead, "dead letter")}, ${plural(groups.groups.length, "group")}, ${bytes(of.bytes)}.`;
    },
    command: () => sandctl("topic delete", [topic], { yes: true }),
    run: async () => {
      await remove(path("topics", topic));
      location.hash = "#/";
      return `Topic ${topic} was deleted`;
    },
  });
}

// -- the timeline ------------------------------------------------------------------------------------------------------

const RANGES = {
  "10m": { text: "10 minutes", unit: "second", unit_s: 1, count: 600, past_s: 600 },
  "1h": { text: "1 hour", unit: "minute", unit_s: 60, count: 60, past_s: 3600 },
  "24h": { text: "24 hours", unit: "minute", unit_s: 60, count: 1440, past_s: 3600 },
  "7d": { text: "7 days", unit: "hour", unit_s: 3600, count: 168, past_s: 3600 },
  "30d": { text: "30 days", unit: "hour", unit_s: 3600, count: 720, past_s: 3600 },
};

function timelineTab(context, topic) {
  const tiles = {
    in: tile("In / s"), out: tile("Delivered / s"), acked: tile("Acked / s"), lag: tile("Lag"), oldest: tile("Oldest unacked"), late: tile("Late, p99", "First deliveries of the last minute"),
    delayed: tile("Not due yet"), messages: tile("Messages"), dead: tile("Dead letters"), bytes: tile("Bytes"),
  };
  const over = h("p", { class: "dim" });
  let newest = null; // adds the rates of an update to the chart
  context.onLive(() => {
    const row = live.topics.get(topic);
    if (!row) return;
    tiles.in.set(rate(row.in_per_s));
    tiles.out.set(rate(row.out_per_s));
    tiles.acked.set(rate(row.acked_per_s));
    tiles.lag.set(short(row.lag), row.stalled && row.lag ? "warn" : "");
    tiles.oldest.set(row.oldest_at ? span(nowMs() - Date.parse(row.oldest_at)) : "–");
    tiles.late.set(milliseconds(row.late_p99_ms), row.late_p99_ms > 1000 ? "bad" : row.late_p99_ms > 100 ? "warn" : "");
    tiles.delayed.set(short(row.delayed));
    tiles.messages.set(short(row.messages));
    tiles.dead.set(short(row.dead), row.dead ? "warn" : "");
    tiles.bytes.set(bytes(row.bytes));
    newest?.(row);
    setText(over, `Rates: the last ${Math.round(live.overview.over_ms / 1000)} s; lateness: the last minute. The history of deliveries covers the last hour, since the current leaders began to lead.`);
  });
  const container = h("div", { class: "card", data: { chart: "due" } });
  const past = h("div", { class: "card", data: { chart: "delivered" } });
  const rates = h("div", { class: "card", data: { chart: "rates" } });
  const late = h("div", { class: "card" });
  const chosen = h("div", { class: "segments", role: "group", "aria-label": "Time range" });
  let range = "1h";
  function ranges() {
    fill(chosen, Object.entries(RANGES).map(([name, one]) => h("button", { type: "button", "aria-pressed": String(name === range), onclick: () => { range = name; ranges(); reload(); } }, one.text)));
  }
  const same = commandLine("");
  let drawn = null;
  function reload() {
    const { unit, count: units } = RANGES[range];
    same.update(sandctl("topic forecast", [topic], { unit, count: units }));
    drawn?.abort();
    drawn = new AbortController();
    context.signal.addEventListener("abort", () => drawn.abort());
    const mine = drawn.signal;
    load(container, () => Promise.all([
      get(path("topics", topic, "forecast"), { unit, count: units }, { signal: mine }),
      get(path("topics", topic, "history"), {}, { signal: mine }),
    ]), ([forecast, history]) => {
      const now = Date.parse(forecast.now) / 1000;
      newest = null;
      load(rates, async () => history, () => {
        const found = rateChart(history, RANGES[range].past_s, now, mine);
        newest = found.add;
        if (live.topics.has(topic)) newest(live.topics.get(topic));
        return found.element;
      });
      load(past, async () => history, () => delivered(RANGES[range], now, history, mine));
      load(late, async () => history, () => lateness(history, RANGES[range].past_s, now, mine));
      return due(RANGES[range], now, forecast, mine);
    });
  }
  ranges();
  reload();
  return [
    h("dl", { class: "tiles" }, Object.values(tiles).map((one) => one.element)), over,
    h("div", { class: "row" }, chosen, h("button", { type: "button", onclick: reload }, "Refresh")),
    rates, past, container, late, same,
  ];
}

const RATES = [
  { label: "Produced", colour: "due", of: (slot) => slot.stored, live: "in_per_s" },
  { label: "Delivered", colour: "past", of: (slot) => slot.delivered, live: "out_per_s" },
  { label: "Acked", colour: "good", of: (slot) => slot.acked, live: "acked_per_s" },
  { label: "Became dead letters", colour: "late", of: (slot) => slot.dead, live: "dead_per_s" },
];
const RATE_POINTS = 1800; // updates that a chart keeps: an hour, with one every 2 s

// Rates over time: the history that nodes keep, continued by the updates of the stream.
function rateChart(history, past_s, now, signal) {
  const slot_s = Math.max(history.slot_ms / 1000, 1);
  const slots = new Map(history.slots.map((one) => [Math.floor(Date.parse(one.start) / 1000 / slot_s), one]));
  const first = Math.max(Math.min(...slots.keys(), Infinity), Math.floor((now - past_s) / slot_s));
  const kept = []; // [time, rates]: a slot is drawn at its middle; the history leaves out slots without messages
  for (let slot = first; (slot + 1) * slot_s <= now; slot += 1) {
    const one = slots.get(slot);
    kept.push([(slot + 0.5) * slot_s, RATES.map(({ of }) => (one ? of(one) / slot_s : 0))]);
  }
  const samples = [];
  const x = () => [...kept, ...samples].map(([at]) => at);
  const values = () => RATES.map((_, index) => [...kept, ...samples].map(([, rates]) => rates[index]));
  const drawn = chart({
    title: "Messages per second", x: kept.length ? x() : [now], signal, from: now - past_s, to: now, height: 200, text: rate,
    series: values().map((found, index) => ({ label: RATES[index].label, colour: RATES[index].colour, kind: "line", values: kept.length ? found : [null] })),
  });
  const add = (row) => {
    const at = Date.parse(live.overview.at) / 1000;
    if (at <= (samples.at(-1) ?? kept.at(-1) ?? [now])[0]) return;
    samples.push([at, RATES.map((one) => row[one.live])]);
    if (samples.length > RATE_POINTS || samples[0][0] < at - past_s) samples.shift();
    drawn.set(x(), values(), at - past_s, at);
  };
  return { element: drawn, add };
}

// The past and the future have separate charts, because their bars cover different durations.
function delivered(range, now, history, signal) {
  const slot_s = Math.max(history.slot_ms / 1000, 1);
  // Deliveries are counted in the slots of the history; in a view of hours, one bar is a minute.
  const wide_s = range.unit === "second" ? slot_s : Math.max(slot_s, 60);
  const bars = new Map();
  for (const one of history.slots) {
    const at = Math.floor(Date.parse(one.start) / 1000 / wide_s) * wide_s;
    if (at >= now - range.past_s) bars.set(at, (bars.get(at) ?? 0) + one.delivered);
  }
  const title = `Delivered per ${wide_s === 60 ? "minute" : `${wide_s} s`}`;
  if (![...bars.values()].some((one) => one > 0)) return [h("h2", {}, title), h("p", { class: "dim" }, "Nothing was delivered in this time.")];
  const times = [...bars.keys()].sort((one, other) => one - other);
  return chart({
    title, x: times, signal, from: now - range.past_s, to: now, height: 200, text: short,
    series: [{ label: "Delivered", colour: "past", kind: "bars", values: times.map((at) => bars.get(at)), width_s: times.map((at) => Math.min(wide_s, Math.max(now - at, 1))) }],
  });
}

function due(range, now, forecast, signal) {
  const bars = new Map();
  const bar = (one) => {
    const at = Date.parse(one.start) / 1000;
    if (!bars.has(at)) bars.set(at, { due: null, planned: null });
    return bars.get(at);
  };
  for (const one of forecast.buckets) bar(one).due = one.messages;
  for (const one of forecast.scheduled) {
    const found = bar(one);
    found.planned = one.messages + (found.due ?? 0);
  }
  const times = [...bars.keys()].sort((one, other) => one - other);
  const first = Math.floor(now / range.unit_s) * range.unit_s; // the first unit began before now
  const of = (name) => (times.length ? times.map((at) => bars.get(at)[name]) : [null]);
  const sum = (rows) => rows.reduce((total, one) => total + one.messages, 0);
  return [
    chart({
      title: `Due per ${range.unit}`, x: times.length ? times : [now], signal, from: first, to: first + range.count * range.unit_s, height: 200, text: short,
      series: [
        { label: "With schedules", colour: "planned", kind: "bars", values: of("planned"), width_s: range.unit_s },
        { label: "Due", colour: "due", kind: "bars", values: of("due"), width_s: range.unit_s },
      ],
    }),
    h("p", { class: "dim" }, `Due in the next ${range.text}: ${plural(sum(forecast.buckets), "message")}, and ${count(sum(forecast.scheduled))} more from schedules${forecast.complete ? "" : " (some schedules are not counted)"}. Due later: ${count(forecast.later)}.`),
  ];
}

function lateness(history, past_s, now, signal) {
  const slots = history.slots.filter((one) => Date.parse(one.start) / 1000 >= now - past_s && one.late_p99_ms !== null && one.late_p99_ms !== undefined);
  if (!slots.length) return [h("h2", {}, "Lateness"), h("p", { class: "dim" }, "There were no first deliveries in this time.")];
  const x = slots.map((one) => Date.parse(one.start) / 1000);
  return chart({
    title: "Lateness of first deliveries", x, signal, from: now - past_s, to: now, height: 200, text: milliseconds,
    series: [
      { label: "p50", colour: "past", kind: "line", values: slots.map((one) => Math.max(one.late_p50_ms, 0)) },
      { label: "p99", colour: "late", kind: "line", values: slots.map((one) => Math.max(one.late_p99_ms, 0)) },
    ],
  });
}
