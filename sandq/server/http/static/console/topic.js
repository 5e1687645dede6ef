// One topic: its timeline, and tabs for all that it has.

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
    if (first && live.look) first = false;
  });

  // A topic that is not there has nothing that could be done to it.
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
    about: "Removes every message that nobody holds: those that are due, those whose time has not come, and all dead letters. It cannot be undone.",
    count: async () => {
      const of = await held(topic);
      return `${plural(of.messages, "message")} (${count(of.delayed)} not due yet) and ${plural(of.dead, "dead letter")}, ${bytes(of.bytes)}. What is leased or waits for another attempt stays.`;
    },
    command: () => sandctl("topic purge", [topic], { dead: true, yes: true }),
    run: async () => {
      const job = await post(path("topics", topic, "purge"), {});
      return `${plural(job.done, "message")} removed; ${count(job.too_late)} stay: somebody has them`;
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
      return `Topic ${topic} is gone`;
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
    setText(over, `Rates: the last ${Math.round(live.look.over_ms / 1000)} s; lateness: the last minute. What was delivered is kept for an hour, since the present leaders lead.`);
  });
  const place = h("div", { class: "card" });
  const late = h("div", { class: "card" });
  const chosen = h("div", { class: "segments", role: "group", "aria-label": "How far ahead" });
  let range = "1h";
  function ranges() {
    fill(chosen, Object.entries(RANGES).map(([name, one]) => h("button", { type: "button", "aria-pressed": String(name === range), onclick: () => { range = name; ranges(); ask(); } }, one.text)));
  }
  const same = commandLine("");
  let drawn = null;
  function ask() {
    const { unit, count: units } = RANGES[range];
    same.update(sandctl("topic forecast", [topic], { unit, count: units }));
    drawn?.abort();
    drawn = new AbortController();
    context.signal.addEventListener("abort", () => drawn.abort());
    const mine = drawn.signal;
    load(place, () => Promise.all([
      get(path("topics", topic, "forecast"), { unit, count: units }, { signal: mine }),
      get(path("topics", topic, "history"), {}, { signal: mine }),
    ]), ([forecast, history]) => {
      load(late, async () => history, () => lateness(history, RANGES[range].past_s, Date.parse(forecast.now) / 1000, mine));
      return timeline(topic, RANGES[range], forecast, history, mine);
    });
  }
  ranges();
  ask();
  return [
    h("dl", { class: "tiles" }, Object.values(tiles).map((one) => one.element)), over,
    h("div", { class: "row" }, chosen, h("button", { type: "button", onclick: ask }, "Refresh")),
    place, late, same,
  ];
}

function timeline(topic, range, forecast, history, signal) {
  const now = Date.parse(forecast.now) / 1000;
  const slot_s = Math.max(history.slot_ms / 1000, range.unit === "second" ? 1 : 0) || 30;
  // What was delivered is told in slots as fine as they are kept; in a view of hours one bar is a minute.
  const wide_s = range.unit === "second" ? slot_s : Math.max(slot_s, 60);
  const bars = new Map();
  const bar = (at, width) => {
    if (!bars.has(at)) bars.set(at, { past: null, due: null, planned: null, width });
    return bars.get(at);
  };
  for (const one of history.slots) {
    const at = Math.floor(Date.parse(one.start) / 1000 / wide_s) * wide_s;
    if (at < now - range.past_s) continue;
    const found = bar(at, Math.min(wide_s, Math.max(now - at, 1)));
    found.past = (found.past ?? 0) + one.delivered;
  }
  for (const one of forecast.buckets) bar(Date.parse(one.start) / 1000 + 0.001, range.unit_s).due = one.messages;
  for (const one of forecast.scheduled) {
    const found = bar(Date.parse(one.start) / 1000 + 0.001, range.unit_s);
    found.planned = one.messages + (found.due ?? 0);
  }
  const times = [...bars.keys()].sort((one, other) => one - other);
  const of = (name) => times.map((at) => bars.get(at)[name]);
  const widths = times.map((at) => bars.get(at).width);
  const from = now - range.past_s;
  const to = now + range.count * range.unit_s;
  const due = forecast.buckets.reduce((sum, one) => sum + one.messages, 0);
  const planned = forecast.scheduled.reduce((sum, one) => sum + one.messages, 0);
  return [
    chart({
      title: "Delivered, and due", x: times.length ? times : [now], signal, from, to, now, height: 240,
      series: [
        { label: "Delivered (left)", colour: "past", kind: "bars", scale: "past", values: of("past"), width_s: widths },
        { label: "By schedules", colour: "planned", kind: "bars", scale: "due", values: of("planned"), width_s: widths },
        { label: "Due (right)", colour: "due", kind: "bars", scale: "due", values: of("due"), width_s: widths },
      ].map((one) => (times.length ? one : { ...one, values: [null], width_s: 1 })),
      text: short,
    }),
    h("p", { class: "dim" }, `${plural(due, "message")} come due in the next ${range.text}, ${count(planned)} more by schedules${forecast.complete ? "" : " (there are more schedules than were counted)"}; ${count(forecast.later)} later. A bar is a ${range.unit} of what is due, and ${wide_s} s of what was delivered.`),
  ];
}

function lateness(history, past_s, now, signal) {
  const slots = history.slots.filter((one) => Date.parse(one.start) / 1000 >= now - past_s && one.late_p99_ms !== null && one.late_p99_ms !== undefined);
  if (!slots.length) return [h("h2", {}, "How late"), h("p", { class: "dim" }, "Nothing was delivered for the first time in this time.")];
  const x = slots.map((one) => Date.parse(one.start) / 1000);
  return chart({
    title: "How late first deliveries were", x, signal, from: now - past_s, to: now, now, height: 180, text: milliseconds,
    series: [
      { label: "p50", colour: "past", kind: "line", values: slots.map((one) => Math.max(one.late_p50_ms, 0)) },
      { label: "p99", colour: "late", kind: "line", values: slots.map((one) => Math.max(one.late_p99_ms, 0)) },
    ],
  });
}
