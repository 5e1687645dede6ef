// One group: its state in each partition, its limits and settings, and its dead letters.

import { get, patch, path, post, put, remove } from "./api.js";
import { sandctl, settingOptions } from "./commands.js";
import { fill, h } from "./dom.js";
import { ago, bytes, count, cut, fromBase64, instant, plural, short, typed } from "./format.js";
import { attempts, headersView, keyText, valueView } from "./messages.js";
import { may, why } from "./rights.js";
import { groupHref, topicHref } from "./topics.js";
import { act, badge, button, commandLine, facts, failure, field, load, loading, table, tile, valuesOf } from "./ui.js";

export function groupView(context, topic, group, tab = "standing") {
  const body = h("div", { class: "tabled" });
  const at = path("topics", topic, "groups", group);
  const container = h("div", { class: "tabled" });
  const again = () => load(container, () => get(at, {}, { signal: context.signal }), (found) => standing(context, topic, group, found, again));
  if (tab === "dead") fill(body, deadLetters(context, topic, group));
  else {
    fill(body, container);
    again();
  }
  const tabs = [["standing", "Overview"], ["dead", "Dead letters"]];
  return [
    h("p", { class: "trail" }, h("a", { href: "#/" }, "Topics"), " / ", h("a", { href: topicHref(topic) }, topic), " / ", h("a", { href: topicHref(topic, "groups") }, "groups"), " /"),
    h("div", { class: "head" }, h("h1", {}, group)),
    h("nav", { class: "tabs", "aria-label": `Of ${group}` }, tabs.map(([name, text]) => h("a", { href: groupHref(topic, group, name === "standing" ? undefined : name), "aria-current": name === tab ? "page" : null }, text))),
    body,
  ];
}

function standing(context, topic, group, found, again) {
  const at = path("topics", topic, "groups", group);
  const manages = { allowed: may("manage", topic, group), reason: why("manage", topic) };
  const isPaused = /^(?!the limit ).*paused/i.test(found.reason ?? "");
  const tiles = [["Lag", found.lag], ["Ready", found.ready], ["Leased", found.leased], ["Retrying", found.waiting], ["Consumers", found.consumers], ["Dead letters", found.dead]].map(([name, value]) => {
    const one = tile(name);
    one.set(short(value), name === "Dead letters" && value ? "warn" : "");
    return one.element;
  });
  const parts = table({
    caption: "Partitions", key: (row) => String(row.partition), sort: ["partition", false], page: 50,
    columns: [
      { key: "partition", label: "Partition", named: true, text: (row) => row.partition, sort: (row) => row.partition },
      { key: "ready", label: "Ready", kind: "number", text: (row) => short(row.ready), sort: (row) => row.ready },
      { key: "leased", label: "Leased", kind: "number", text: (row) => short(row.leased), sort: (row) => row.leased },
      { key: "waiting", label: "Retrying", kind: "number", text: (row) => short(row.waiting), sort: (row) => row.waiting },
      { key: "dead", label: "Dead", kind: "number", text: (row) => short(row.dead), sort: (row) => row.dead },
      { key: "removed", label: "Dead letters removed", kind: "number", wide: true, optional: true, text: (row) => (row.dead_removed ? short(row.dead_removed) : "") },
      { key: "dropped", label: "Dropped", kind: "number", wide: true, optional: true, text: (row) => (row.dropped ? short(row.dropped) : "") },
      { key: "blocked", label: "Blocked by keys", kind: "number", wide: true, optional: true, text: (row) => (row.blocked_by_key === undefined ? "" : count(row.blocked_by_key)) },
      { key: "cursor", label: "Leased up to", kind: "code", wide: true, text: (row) => row.cursor ?? "–" },
      { key: "committed", label: "Acked up to", kind: "code", wide: true, text: (row) => row.committed ?? "–" },
      { key: "reason", label: "Why it receives nothing", optional: true, text: (row) => cut(row.reason ?? "", 120) },
    ],
  });
  parts.set(found.partitions);
  const consumers = h("div", {});
  load(consumers, () => get(`${at}/consumers`, {}, { signal: context.signal }), consumersView);
  const limits = found.limits ?? {};
  const pushed = h("div", {});
  load(pushed, async () => {
    const { pushes } = await get(path("topics", topic, "pushes"), {}, { signal: context.signal });
    return pushes.find((one) => one.group === group);
  }, (push) => (push ? facts([["To", push.url ?? "the URLs of its messages"], ["State", push.state], ["Last error", push.error], ["At once", push.concurrency]]) : h("p", { class: "dim" }, "The group is not pushed: its consumers subscribe or lease.")));
  return [
    h("div", { class: "row" },
      isPaused
        ? button("Resume…", () => act({ title: "Resume the group", verb: "Resume", about: `Messages that came due meanwhile are delivered first: ${plural(found.lag, "message")} are due now.`, command: () => sandctl("group resume", [topic, group]), run: async () => { await post(`${at}/resume`); return "Resumed"; }, done: again }), { ...manages, kind: "primary" })
        : button("Pause…", () => pause(topic, group, found, again), manages),
      button("Limits…", () => changeLimits(topic, group, limits, again), manages),
      button("Settings…", () => changeSettings(topic, group, found.settings, again), manages),
      button("Seek…", () => seek(topic, group, found, again), { ...manages, kind: "danger" }),
      button("Delete…", () => deleteGroup(topic, group), { ...manages, kind: "danger" }),
      h("button", { type: "button", onclick: again }, "Refresh")),
    found.reason && h("div", { class: "note" }, h("strong", {}, "The group receives nothing: "), found.reason),
    pausedParts(found.partitions),
    partsOf(found).length > 0 && pausesCard(context, topic, group, manages, again),
    h("dl", { class: "tiles" }, tiles),
    h("div", { class: "columns" },
      h("section", { class: "card" }, h("h2", {}, "Limits"), found.limits ? facts([limits.limit && ["Named limit", limits.limit], ["In flight", limits.max_in_flight === null || limits.max_in_flight === undefined ? null : `${count(limits.in_flight)} of ${count(limits.max_in_flight)}`], ["Rate", limits.rate && [limits.rate, limits.unit].filter(Boolean).join(" ")], ["Burst", limits.burst]].filter(Boolean)) : h("p", { class: "dim" }, "No limits.")),
      h("section", { class: "card" }, h("h2", {}, "Own settings"), found.settings ? facts(Object.entries(found.settings).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)])) : h("p", { class: "dim" }, "It has the settings of the topic.")),
      h("section", { class: "card" }, h("h2", {}, "Push"), pushed)),
    h("section", { class: "card", "aria-label": "Consumers of the group" }, h("h2", {}, "Consumers"), consumers, commandLine(sandctl("group consumers", [topic, group]))),
    h("section", { class: "card" }, h("h2", {}, "Partitions"), parts.element),
    commandLine(sandctl("group show", [topic, group])),
  ];
}

// Return a note about paused tenants and keys. A pause is usually in all partitions, so the largest numbers count.
function pausedParts(partitions) {
  const most = (name) => Math.max(0, ...partitions.map((row) => row[name] ?? 0));
  const parts = [["paused_tenants", "tenant"], ["paused_keys", "key"]].filter(([name]) => most(name)).map(([name, word]) => plural(most(name), word));
  return parts.length > 0 && h("div", { class: "note" }, h("strong", {}, "Paused: "), parts.join(", "));
}

// Return the parts of the group that can be paused: tenants in a fair topic, keys in a topic that limits keys.
function partsOf(found) {
  const hasTenants = found.partitions.some((row) => row.tenants);
  const hasKeys = found.blocked_by_key !== null && found.blocked_by_key !== undefined;
  return [hasTenants && "tenant", hasKeys && "key"].filter(Boolean);
}

function pause(topic, group, found, done) {
  const parts = partsOf(found);
  const options = [["group", "the whole group"], ["tenant", "one tenant"], ["key", "one key"]].filter(([name]) => name === "group" || parts.includes(name));
  const part = (values, missing) => (!values.part || values.part === "group" ? {} : { [values.part]: values[values.part] || missing });
  const until = (values) => (values.until ? typed(values.until).toISOString() : "");
  act({
    title: "Pause the group", verb: "Pause",
    about: `Its ${plural(found.consumers, "consumer")} receive nothing new until the pause ends or you resume the group, also across restarts. They keep what they hold: ${plural(found.leased, "message")}.${parts.length ? ` A pause of one ${parts.join(" or ")} stops only its messages, and can begin before its first message.` : ""}`,
    fields: [
      ...(parts.length ? [{ name: "part", label: "Pause", kind: "select", options }] : []),
      ...(parts.includes("tenant") ? [{ name: "tenant", label: "Tenant", help: "The tenants below it are paused, too.", shownIf: (values) => values.part === "tenant" }] : []),
      ...(parts.includes("key") ? [{ name: "key", label: "Key", shownIf: (values) => values.part === "key" }] : []),
      { name: "for", label: "For", placeholder: "until it is resumed", help: "Such as 10m or 2h." },
      { name: "until", label: "Until", kind: "datetime-local", help: "Instead of a duration." },
    ],
    command: (values) => sandctl("group pause", [topic, group], { ...part(values, values.part?.toUpperCase()), for: values.for, until: until(values) }),
    run: async (values) => {
      const named = part(values, "");
      if (Object.values(named).includes("")) throw new Error(`Enter the ${values.part}.`);
      const body = { ...named, ...(values.for ? { for: values.for } : {}), ...(values.until ? { until: until(values) } : {}) };
      await post(path("topics", topic, "groups", group, "pause"), Object.keys(body).length ? body : undefined);
      return "Paused";
    },
    done,
  });
}

function pausesCard(context, topic, group, manages, done) {
  const list = h("div", {});
  load(list, () => get(path("topics", topic, "groups", group, "pauses"), {}, { signal: context.signal }), (found) => pausesView(topic, group, manages, found, done));
  return h("section", { class: "card", "aria-label": "Pauses of the group" }, h("h2", {}, "Pauses"), list, commandLine(sandctl("group pauses", [topic, group])));
}

function pausesView(topic, group, manages, found, done) {
  const isNamed = (row) => [row.tenant, row.key, row.key_base64].some((one) => one !== undefined && one !== null);
  const name = (row) => row.tenant ?? (isNamed(row) ? keyText(row) || "the empty key" : "a key above 1,024 bytes");
  const until = (row) => (row.paused_until ? Date.parse(row.paused_until) : Infinity);
  const rows = table({
    caption: "Pauses", key: (row) => JSON.stringify([row.part, row.tenant, row.key, row.key_base64, isNamed(row) ? null : found.pauses.indexOf(row)]), sort: null, page: 25, empty: "No tenant or key is paused.",
    columns: [
      { key: "name", label: "Paused", kind: "code", text: (row) => cut(name(row), 80) },
      { key: "part", label: "Kind", text: (row) => row.part },
      { key: "until", label: "Until", text: (row) => (row.paused_until ? instant(row.paused_until) : "it is resumed"), sort: until },
      { key: "partitions", label: "Partitions", kind: "number", wide: true, text: (row) => count(row.partitions), sort: (row) => row.partitions },
      { key: "resume", label: "Resume", cell: (row) => (isNamed(row) ? button("Resume…", () => resumePart(topic, group, row, name(row), done), manages) : h("span", {})), mark: isNamed },
    ],
  });
  rows.set(found.pauses);
  return [rows.element, found.left_out > 0 && h("p", { class: "dim" }, `At least ${plural(found.left_out, "paused tenant or key", "paused tenants and keys")} more are not shown.`)];
}

function resumePart(topic, group, row, name, done) {
  const named = Object.fromEntries(["tenant", "key", "key_base64"].filter((one) => row[one] !== undefined && row[one] !== null).map((one) => [one, row[one]]));
  act({
    title: `Resume the ${row.part}`, verb: "Resume", about: `The messages of ${row.part} ${cut(name, 80)} are delivered again.`,
    // `sandctl` leaves out empty options, and without --key the command would resume the whole group.
    command: () => (row.key === "" ? `${sandctl("group resume", [topic, group])} --key ''` : sandctl("group resume", [topic, group], row.key_base64 ? { key: fromBase64(row.key_base64) } : named)),
    run: async () => { await post(path("topics", topic, "groups", group, "resume"), named); return "Resumed"; },
    done,
  });
}

function consumersView(found) {
  const rows = table({
    caption: "Consumers", key: (row) => row.consumer, sort: ["messages", true], page: 25, empty: "No consumer subscribes or holds messages.",
    columns: [
      { key: "consumer", label: "Consumer", text: (row) => cut(row.consumer, 80) },
      { key: "address", label: "Address", text: (row) => cut(row.address ?? "leases by requests", 60) },
      { key: "messages", label: "Holds", kind: "number", text: (row) => count(row.messages), sort: (row) => row.messages },
      { key: "leased", label: "Oldest leased", optional: true, text: (row) => (row.leased_at ? ago(row.leased_at) : ""), sort: (row) => (row.leased_at ? -Date.parse(row.leased_at) : -Infinity), title: (row) => (row.leased_at ? instant(row.leased_at) : "") },
      { key: "since", label: "Subscribed", optional: true, text: (row) => (row.since ? ago(row.since) : ""), sort: (row) => (row.since ? -Date.parse(row.since) : -Infinity), title: (row) => (row.since ? instant(row.since) : "") },
      { key: "credit", label: "Credit", kind: "number", optional: true, text: (row) => (row.credit === null ? "" : count(row.credit)), sort: (row) => row.credit ?? -1, title: () => "How many messages it can still receive" },
      { key: "partitions", label: "Partitions", kind: "number", wide: true, optional: true, text: (row) => (row.partitions ? count(row.partitions) : ""), sort: (row) => row.partitions },
    ],
  });
  rows.set(found.consumers);
  return [rows.element, found.left_out > 0 && h("p", { class: "dim" }, `At least ${plural(found.left_out, "consumer")} more are not shown.`)];
}

function changeLimits(topic, group, found, done) {
  const limits = found.limit ? { limit: found.limit } : found;
  const body = (values) => Object.fromEntries(Object.entries({ limit: values.limit || null, max_in_flight: values.max_in_flight ? Number(values.max_in_flight) : null, rate: values.rate || null, burst: values.burst ? Number(values.burst) : null, unit: values.unit || null }).filter(([, value]) => value !== null));
  act({
    title: `Limits of ${group}`, verb: "Set them", about: "They hold over all partitions and replace the present limits. Leave all empty for no limits.",
    fields: [
      { name: "max_in_flight", label: "In flight at most", kind: "number", value: limits.max_in_flight ?? "", help: "Most messages that are leased and not settled." },
      { name: "rate", label: "Rate", value: limits.rate ?? "", placeholder: "50/s" },
      { name: "burst", label: "Burst", kind: "number", value: limits.burst ?? "", help: "Most messages at once after a pause; only with a rate." },
      { name: "unit", label: "Unit", value: limits.unit ?? "", placeholder: "messages", help: "If the rate counts costs of messages, their unit, for example tokens." },
      { name: "limit", label: "Named limit", value: limits.limit ?? "", help: "Instead of the others: a limit that groups of several topics share." },
    ],
    command: (values) => {
      const given = body(values);
      return sandctl("group limit", [topic, group], Object.keys(given).length ? { limit: given.limit, "max-in-flight": given.max_in_flight, rate: given.rate, burst: given.burst, unit: given.unit } : { none: true });
    },
    preview: (values) => changes(limits, { limit: null, max_in_flight: null, rate: null, burst: null, unit: null, ...body(values) }),
    run: async (values) => { await put(path("topics", topic, "groups", group, "limits"), body(values)); return "Limits set"; },
    done,
  });
}

export function changes(before, after) {
  const text = (value) => (value === null || value === undefined ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const rows = Object.keys(after).filter((name) => text(before?.[name]) !== text(after[name]));
  if (!rows.length) return h("p", { class: "dim" }, "Nothing changes.");
  return h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "unseen" }, "What changes"), h("thead", {}, h("tr", {}, ["What changes", "Now", "Then"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((name) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "dim" }, text(before?.[name])), h("td", {}, text(after[name])))))));
}

function changeSettings(topic, group, own, done) {
  const backoff = own?.backoff ?? {};
  const body = (values) => ({
    ...(values.max_attempts ? { max_attempts: values.max_attempts === "none" ? null : Number(values.max_attempts) } : {}),
    ...(values.max_snoozes ? { max_snoozes: values.max_snoozes === "none" ? null : Number(values.max_snoozes) } : {}),
    ...(values.on_expiry ? { on_expiry: values.on_expiry } : {}),
    ...(values.kind ? { backoff: { kind: values.kind, ...(values.first && values.kind !== "none" ? { first: values.first } : {}) } } : {}),
  });
  act({
    title: `Settings of ${group}`, verb: "Set them", about: "They replace the group's own settings. An empty field means the topic's setting.",
    fields: [
      { name: "max_attempts", label: "Attempts at most", value: own?.max_attempts ?? "", placeholder: "the topic's", help: "A number, or none." },
      { name: "max_snoozes", label: "Snoozes at most", value: own?.max_snoozes ?? "", placeholder: "the topic's" },
      { name: "on_expiry", label: "Expired messages", kind: "select", value: own?.on_expiry ?? "", options: [["", "as in the topic"], ["dead", "become dead letters"], ["drop", "are dropped"]] },
      { name: "kind", label: "Back-off", kind: "select", value: backoff.kind ?? "", options: [["", "the topic's"], "exponential", "fixed", "linear", "none"] },
      { name: "first", label: "First wait", value: backoff.first ?? "", placeholder: "5s" },
    ],
    command: (values) => {
      const given = body(values);
      return sandctl("group update", [topic, group], Object.keys(given).length ? settingOptions(given) : { reset: true });
    },
    preview: (values) => changes(own ?? {}, { max_attempts: undefined, max_snoozes: undefined, on_expiry: undefined, backoff: undefined, ...body(values) }),
    run: async (values) => { await patch(path("topics", topic, "groups", group), { settings: body(values) }); return "Settings set"; },
    done,
  });
}

function seek(topic, group, found, done) {
  const to = (values) => (values.place === "at" ? (values.at ? typed(values.at).toISOString() : "") : values.place);
  act({
    title: "Seek…", verb: "Seek", danger: true, typed: group,
    about: `Moves the group to another position. Back: every message that is still stored from there on is delivered again, dead letters too. Forward: the messages in between count as acked. Consumers lose what they hold: ${plural(found.leased, "message")}.`,
    fields: [
      { name: "place", label: "To", kind: "select", options: [["latest", "latest: only new messages"], ["earliest", "earliest: every stored message"], ["at", "a time"]] },
      { name: "at", label: "Time", kind: "datetime-local", shownIf: (values) => values.place === "at" },
    ],
    count: async (values) => {
      const [{ lag }, { stats }] = await Promise.all([get(path("topics", topic, "groups", group)), get(path("topics", topic))]);
      const due = `${plural(lag, "message")} are due and not acked now`;
      if (values.place === "latest") return `${due}, and count as acked then.`;
      const stored = plural(stats.reduce((sum, row) => sum + row.messages, 0), "message");
      return `${due}; ${values.place === "earliest" ? stored : `of ${stored} those from then on`} that are stored are delivered, again or for the first time.`;
    },
    command: (values) => sandctl("group seek", [topic, group], { to: to(values) || "latest", yes: true }),
    run: async (values) => { await post(path("topics", topic, "groups", group, "seek"), { to: to(values) }); return "The group was moved"; },
    done,
  });
}

function deleteGroup(topic, group) {
  act({
    title: `Delete ${group}…`, verb: "Delete", danger: true, typed: group,
    about: "Deletes the group's position and its dead letters. It is refused while the group has consumers, or messages that are leased, retrying or blocked by their keys.",
    fields: [{ name: "force", label: "Also delete the messages that it has not finished: they are lost", kind: "checkbox" }],
    count: async () => {
      const now = await get(path("topics", topic, "groups", group));
      return `${plural(now.lag, "message")} are due and not acked, ${plural(now.dead, "dead letter")}, ${plural(now.consumers, "consumer")}. It has not finished ${plural(now.unfinished, "message")}.`;
    },
    command: (values) => sandctl("group delete", [topic, group], { force: values.force, yes: true }),
    run: async (values) => {
      await remove(path("topics", topic, "groups", group) + (values.force ? "?force=true" : ""));
      location.hash = topicHref(topic, "groups");
      return "The group was deleted";
    },
  });
}

// -- dead letters ------------------------------------------------------------------------------------------------------

const REASONS = ["nacked", "lease_expired", "expired", "rejected", "undeliverable"];
const PAGE = 500; // dead letters per request; errors are counted in those that were loaded
const ERROR_CHARS = 1024; // limit of the API's filter

// Count dead letters by error. The longest line of an error fits into a field, and can be used as a filter.
const lineOf = (error) => (error ?? "").split(/[\r\n]+/).reduce((one, other) => (other.length > one.length ? other : one), "").slice(0, ERROR_CHARS);
function byError(letters) {
  const found = new Map();
  for (const one of letters) {
    const key = JSON.stringify([one.reason, one.error ?? null]);
    const of = found.get(key) ?? { key, reason: one.reason, error: one.error, line: lineOf(one.error), count: 0, first_at: one.dead_at, last_at: one.dead_at };
    of.count += 1;
    if (Date.parse(one.dead_at) < Date.parse(of.first_at)) of.first_at = one.dead_at;
    if (Date.parse(one.dead_at) > Date.parse(of.last_at)) of.last_at = one.dead_at;
    found.set(key, of);
  }
  return [...found.values()];
}

function deadLetters(context, topic, group) {
  const at = path("topics", topic, "groups", group, "dead");
  const manages = { allowed: may("manage", topic, group), reason: why("manage", topic) };
  const list = h("section", { class: "card tabled", "aria-label": "List of dead letters" });
  const errors = h("section", { class: "card", hidden: true, "aria-label": "Errors of dead letters" });
  const detail = h("section", { class: "card", hidden: true, tabindex: -1, "aria-label": "The dead letter" });
  const same = commandLine("");
  const form = h("form", { class: "card", role: "search", "aria-label": "Dead letters" }, h("div", { class: "fields" },
    field({ name: "reason", label: "Reason", kind: "select", options: [["", "any"], ...REASONS] }),
    field({ name: "error", label: "Error contains" }), field({ name: "key_prefix", label: "Key begins with" }),
    field({ name: "since", label: "Died from", kind: "datetime-local" }), field({ name: "until", label: "Died before", kind: "datetime-local" }),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "List"), button("Show all", () => { form.reset(); reload(); }))));
  const filters = () => {
    const values = valuesOf(form);
    const time = (text) => (text ? typed(text).toISOString() : "");
    return Object.fromEntries(Object.entries({ ...values, since: time(values.since), until: time(values.until) }).filter(([name, value]) => name && value));
  };
  const options = (which) => ({ g: group, reason: which.reason, error: which.error, "key-prefix": which.key_prefix, since: which.since, until: which.until });
  const picked = h("span", { class: "dim", role: "status" });
  const rows = table({
    caption: "Dead letters", key: (row) => row.id, sort: null, page: 100, empty: "No dead letter matches.", select: { onchange: () => sayPicked() },
    columns: [
      { key: "id", label: "Id", text: (row) => row.id, cell: (row) => h("button", { type: "button", class: "quiet mono", onclick: () => showRow(row) }, row.id), mark: (row) => JSON.stringify(row) },
      { key: "reason", label: "Reason", cell: (row) => badge(row.reason, "bad"), mark: (row) => row.reason },
      { key: "error", label: "Last error", optional: true, text: (row) => cut(row.error ?? "", 100), title: (row) => cut(row.error ?? "", 1000) },
      { key: "dead", label: "Died", text: (row) => ago(row.dead_at), title: (row) => instant(row.dead_at) },
      { key: "attempts", label: "Attempts", kind: "number", wide: true, text: (row) => row.attempts },
      { key: "life", label: "Life", kind: "number", wide: true, text: (row) => row.life },
      { key: "key", label: "Key", wide: true, optional: true, text: (row) => cut(keyText(row), 60) },
      { key: "size", label: "Size", kind: "number", wide: true, text: (row) => bytes(row.size) },
    ],
  });
  const kinds = table({
    caption: "Errors", key: (row) => row.key, sort: ["count", true], page: 8, empty: "No error.",
    columns: [
      { key: "error", label: "Error", text: (row) => row.error ?? "", cell: (row) => h("button", { type: "button", class: "quiet text", title: `Show only these: ${cut(row.error ?? "no error", 1000)}`, onclick: () => narrow(row) }, row.error ? cut(row.error, 140) : "no error"), mark: (row) => row.key },
      { key: "reason", label: "Reason", text: (row) => row.reason, cell: (row) => badge(row.reason, "bad"), mark: (row) => row.reason },
      { key: "count", label: "Count", kind: "number", text: (row) => count(row.count), sort: (row) => row.count },
      { key: "first", label: "First died", text: (row) => ago(row.first_at), sort: (row) => Date.parse(row.first_at), title: (row) => instant(row.first_at) },
      { key: "last", label: "Last died", text: (row) => ago(row.last_at), sort: (row) => Date.parse(row.last_at), title: (row) => instant(row.last_at) },
    ],
  });
  let found = [];
  let next = null;
  let requested = 0; // number of the last request: responses to earlier ones are ignored
  function narrow(kind) {
    form.elements.reason.value = kind.reason;
    form.elements.error.value = kind.line;
    reload();
  }
  function sayPicked() {
    const isFiltered = Object.keys(filters()).length > 0;
    const all = next ? (isFiltered ? "all that match" : "all of the group") : plural(found.length, "dead letter");
    fill(picked, rows.chosen.size ? `${count(rows.chosen.size)} selected` : `None selected: both buttons apply to ${all}`);
  }
  async function reload(after = null) {
    same.update(sandctl("dead list", [topic], { ...options(filters()), newest: true }));
    if (!after) {
      found = [];
      fill(list, loading());
    }
    const mine = (requested += 1);
    try {
      const page = await get(at, { ...filters(), limit: PAGE, after, values: "false", order: "newest" }, { signal: context.signal });
      if (mine !== requested) return;
      found = [...found, ...page.messages];
      next = page.next;
      rows.set(found);
      kinds.set(byError(found));
      errors.hidden = !found.length;
      fill(errors, h("h2", {}, next ? `Errors of the latest ${plural(found.length, "dead letter")}` : "Errors"), kinds.element);
      sayPicked();
      fill(list, found.length > 0 && h("div", { class: "row" },
        button("Redrive…", () => settle("redrive"), { ...manages, kind: "primary" }), button("Purge…", () => settle("purge"), { ...manages, kind: "danger" }), picked),
      rows.element, next && h("div", { class: "row" }, h("button", { type: "button", onclick: () => reload(next) }, "More")));
    } catch (error) {
      if (error.name !== "AbortError" && mine === requested) fill(list, failure(error, () => reload(after)));
    }
  }
  async function showRow(row) {
    detail.hidden = false;
    await load(detail, () => get(path("topics", topic, "messages", row.id), { as_text: true }, { signal: context.signal }), (message) => [
      h("div", { class: "head" }, h("h2", { class: "mono" }, row.id), badge(row.reason, "bad"), h("div", { class: "acts" }, h("button", { type: "button", class: "quiet", onclick: () => { detail.hidden = true; } }, "Close"))),
      facts([["Last error", row.error], ["Died", `${instant(row.dead_at)} (${ago(row.dead_at)})`], ["Was due", instant(row.deliver_at)], ["Attempts", row.attempts], ["Life", row.life], ["Key", keyText(row) || null], ["Not forwarded", row.not_forwarded]]),
      headersView(message), h("h3", {}, "Value"), valueView(message), h("h3", {}, "Attempts"), attempts(row.history),
    ], { fresh: true });
    detail.focus();
  }
  function settle(how) {
    const ids = [...rows.chosen];
    const which = filters();
    const isPurge = how === "purge";
    const isAll = !ids.length && !Object.keys(which).length;
    act({
      title: isPurge ? "Purge dead letters…" : "Redrive dead letters…", verb: isPurge ? "Purge them" : "Redrive them", danger: isPurge, typed: isPurge ? topic : undefined,
      about: `${ids.length ? "Those that you selected." : Object.keys(which).length ? "All that match the filter." : "All of this group."} ${isPurge ? "They are deleted. It cannot be undone." : "They are delivered again, as at their first attempt."}`,
      fields: isPurge || ids.length ? [] : [{ name: "rate", label: "Maximum messages per second", kind: "number", placeholder: "no limit" }],
      count: async () => {
        if (ids.length) return `${plural(ids.length, "dead letter")}.`;
        const job = await post(`${at}/${how}`, { ...which, dry_run: true });
        return `${plural(job.matched, "dead letter")}.`;
      },
      command: (values) => sandctl(`dead ${how}`, [topic], ids.length ? { g: group, id: ids, yes: isPurge } : { ...options(which), all: isAll, rate: values.rate, yes: isPurge }),
      run: async (values) => {
        const job = await post(`${at}/${how}`, ids.length ? { ids } : { ...which, ...(isAll ? { all: true } : {}), ...(values.rate ? { rate: Number(values.rate) } : {}) });
        return `${plural(job.done, "dead letter")} ${isPurge ? "purged" : "redriven"}`;
      },
      done: () => { detail.hidden = true; reload(); },
    });
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); reload(); });
  reload();
  return [form, errors, detail, list, same];
}
