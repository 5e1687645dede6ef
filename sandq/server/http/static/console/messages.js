// Messages: search, show, explain, cancel, move and change them.

import { get, patch, path, remove } from "./api.js";
import { sandctl } from "./commands.js";
import { fill, h } from "./dom.js";
import { ago, bytes, count, cut, fromBase64, hex, instant, plural, pretty, preview, PREVIEW_BYTES, typed, valueBytes, visible } from "./format.js";
import { asTyped, headerLines, headersOf, payload, VALUE_KINDS, valueOf, WHEN_FIELDS, whenOf, whenOptions } from "./produce.js";
import { may, why } from "./rights.js";
import { liveTail } from "./tail.js";
import { act, badge, button, commandLine, facts, failure, field, load, loading, say, table, valuesOf } from "./ui.js";

const STATES = { delayed: "", ready: "warn", leased: "good", waiting: "warn", acked: "good", dead: "bad", gone: "" };
const FIRST = 64 * 1024;
const FIRST_HEX = 4 * 1024;

export const keyText = (row, name = "key") => row[name] ?? (row[`${name}_base64`] === undefined ? "" : `base64:${row[`${name}_base64`]}`);

export function messagesTab(context, topic) {
  const detail = h("section", { class: "card", hidden: true, "aria-label": "The message", tabindex: -1 });
  const tenantField = field({ name: "tenant", label: "Tenant", placeholder: "default" });
  const keyField = field({ name: "key", label: "Its key", placeholder: "with a unique key" });
  context.onLive((live) => {
    const isFair = live.topics.get(topic)?.kind === "fair";
    tenantField.hidden = !isFair;
    keyField.hidden = isFair;
  });
  const list = h("div", { class: "card" });
  const same = commandLine("");
  const form = h("form", { class: "card", role: "search", "aria-label": "Messages" },
    h("div", { class: "fields" },
      field({ name: "state", label: "State", kind: "select", options: [["", "any"], "delayed", "ready", "leased", "waiting", "acked"] }),
      field({ name: "since", label: "Due from", kind: "datetime-local" }),
      field({ name: "until", label: "Due before", kind: "datetime-local" }),
      field({ name: "key_prefix", label: "Key begins with" }),
      field({ name: "unique_key_prefix", label: "Unique key begins with" }),
      field({ name: "order", label: "Order", kind: "select", options: [["oldest", "earliest first"], ["newest", "latest first"]] }),
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "List"), h("button", { type: "button", onclick: () => follow() }, "Live tail"))));
  const one = h("form", { class: "card", "aria-label": "One message" },
    h("div", { class: "fields" },
      field({ name: "name", label: "One message", placeholder: "id or unique key", required: true }),
      field({ name: "by", label: "Identified by", kind: "select", options: [["id", "its id"], ["unique_key", "its unique key"]] }),
      tenantField, keyField,
      h("div", { class: "buttons" }, h("button", { type: "submit" }, "Show"))));
  const manages = { allowed: may("manage", topic), reason: why("manage", topic) };

  const filters = () => {
    const { state, since, until, key_prefix, unique_key_prefix } = valuesOf(form);
    const at = (text) => (text ? typed(text).toISOString() : "");
    return { state, since: at(since), until: at(until), key_prefix, unique_key_prefix };
  };
  const options = () => {
    const { state, since, until, key_prefix, unique_key_prefix } = filters();
    return { state, since, until, "key-prefix": key_prefix, "unique-key-prefix": unique_key_prefix };
  };
  const ordered = () => (valuesOf(form).order === "newest" ? "newest" : null);
  const columns = [
    { key: "id", label: "Id", text: (row) => row.id, cell: (row) => h("button", { type: "button", class: "quiet mono", onclick: () => showMessage(row.id, "id") }, row.id), mark: (row) => row.id },
    { key: "state", label: "State", cell: (row) => badge(row.state, STATES[row.state]), mark: (row) => row.state },
    { key: "deliver", label: "Delivered at", kind: "time", text: (row) => instant(row.deliver_at), title: (row) => ago(row.deliver_at) },
    { key: "value", label: "Value", optional: true, kind: "code", text: preview },
    { key: "key", label: "Key", optional: true, kind: "code", text: (row) => cut(keyText(row), 60) },
    { key: "unique", label: "Unique key", wide: true, optional: true, kind: "code", text: (row) => cut(keyText(row, "unique_key"), 60) },
    { key: "priority", label: "Priority", kind: "number", wide: true, optional: true, text: (row) => row.priority ?? "" },
    { key: "tenant", label: "Tenant", wide: true, optional: true, text: (row) => cut(row.tenant ?? "", 40) },
    { key: "size", label: "Size", kind: "number", text: (row) => bytes(row.size) },
    { key: "partition", label: "Partition", kind: "number", wide: true, text: (row) => row.partition },
  ];
  const rows = table({ caption: "Messages", key: (row) => row.id, page: 100, sort: null, empty: "No message matches.", columns });
  let tail = null;
  function follow() {
    tail?.end();
    requested += 1;
    const { state, key_prefix, unique_key_prefix } = filters();
    tail = liveTail(context, topic, { state, key_prefix, unique_key_prefix }, columns, () => reload());
    fill(list, tail.element);
    same.update(sandctl("message list", [topic], { ...options(), since: null, until: "now", newest: true }));
  }
  let found = [];
  let next = null;
  let requested = 0; // number of the last request: responses to earlier ones are ignored
  const more = h("button", { type: "button", onclick: () => reload(next) }, "More");
  async function reload(after = null) {
    tail?.end();
    tail = null;
    same.update(sandctl("message list", [topic], { ...options(), newest: ordered() !== null }));
    if (!after) {
      found = [];
      fill(list, loading());
    }
    const mine = (requested += 1);
    try {
      const page = await get(path("topics", topic, "messages"), { ...filters(), limit: 100, after, order: ordered(), value_bytes: PREVIEW_BYTES }, { signal: context.signal });
      if (mine !== requested) return;
      found = [...found, ...page.messages];
      next = page.next;
      rows.set(found);
      fill(list, rows.element, h("div", { class: "row" }, next && more,
        button("Cancel all these…", () => cancelMany(topic, filters(), options(), reload), { ...manages, kind: "danger" }),
        button("Move all these…", () => moveMany(topic, filters(), options(), reload), manages)));
    } catch (error) {
      if (error.name !== "AbortError" && mine === requested) fill(list, failure(error, () => reload(after)));
    }
  }
  const refresh = () => (tail ? tail.refresh() : reload());
  let shown = ""; // the message in `detail`
  async function showMessage(name, by, tenant = "", key = "") {
    const before = shown;
    shown = JSON.stringify([name, by, tenant, key]);
    detail.hidden = false;
    await load(detail, () => get(path("topics", topic, "messages", name), { by: by === "id" ? null : by, tenant, key, as_text: true }, { signal: context.signal }),
      (message) => messageView(context, topic, message, { name, by, tenant, key, again: () => { showMessage(name, by, tenant, key); refresh(); }, list: refresh, close: () => { detail.hidden = true; } }), { fresh: shown !== before });
    detail.focus();
    detail.scrollIntoView({ block: "nearest" });
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); reload(); });
  one.addEventListener("submit", (event) => {
    event.preventDefault();
    const values = valuesOf(one);
    showMessage(values.name.trim(), values.by, values.tenant, values.by === "id" ? "" : values.key);
  });
  reload();
  return [one, form, detail, list, same];
}

// A value as text, as JSON or as bytes. Of a long value, only the beginning is shown at first.
export function valueView(message) {
  const data = valueBytes(message);
  if (data === null) return h("p", { class: "dim" }, "null: this message deletes its key");
  const text = new TextDecoder("utf-8").decode(data);
  const json = typeof message.text === "string" && data.length <= 4 * 1024 * 1024 ? pretty(text) : null;
  const box = h("pre", { class: "value", tabindex: 0, "aria-label": "Value" });
  const note = h("span", { class: "dim", role: "status" });
  const kinds = [["Text", () => text], ...(json === null ? [] : [["JSON", () => json]]), ["Hex", null]];
  const segments = h("div", { class: "segments", role: "group", "aria-label": "Shown as" });
  let most = FIRST;
  let shown = json === null ? (message.text === undefined ? "Hex" : "Text") : "JSON";
  const rest = h("button", { type: "button", class: "quiet", onclick: () => { most = Infinity; show(); } }, "Show all");
  function show() {
    fill(segments, kinds.map(([name]) => h("button", { type: "button", "aria-pressed": String(name === shown), onclick: () => { shown = name; show(); } }, name)));
    const make = kinds.find(([name]) => name === shown)[1];
    const limit = shown === "Hex" && most === FIRST ? FIRST_HEX : most;
    const whole = make ? make() : null;
    box.className = shown === "Hex" ? "value hex" : "value";
    box.textContent = make ? visible(whole.slice(0, limit)) : hex(data, 0, limit);
    const isCut = make ? whole.length > limit : data.length > limit;
    note.textContent = isCut ? `${bytes(data.length)}, cut` : bytes(data.length);
    rest.hidden = !isCut;
  }
  const save = h("button", { type: "button", class: "quiet", onclick: () => {
    const url = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
    h("a", { href: url, download: `${message.id ?? "value"}.bin` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  } }, "Save");
  show();
  return [h("div", { class: "row" }, segments, note, rest, save), box];
}

// A table without pages; on a phone each row is a card. `named`: cards have the column name of the first cell, too.
function smallTable(caption, heads, rows, named = false) {
  const cell = (value, index) => (index === 0
    ? h("th", { scope: "row", role: "rowheader", data: named ? { label: heads[0] } : {} }, String(value ?? ""))
    : h("td", { role: "cell", data: { label: heads[index] } }, String(value ?? "")));
  return h("div", { class: "scroll", tabindex: 0 }, h("table", { class: "cards", role: "table" }, h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((one) => h("tr", { role: "row" }, one.map(cell))))));
}

// Return the value of a header as text: bytes as base64, everything else as JSON.
function headerText(value) {
  const isBytes = value !== null && typeof value === "object" && Object.keys(value).join() === "base64";
  return isBytes ? `base64:${value.base64}` : JSON.stringify(value).replace(/^"|"$/g, "");
}

// `of`: a message, a dead letter, or a key. Headers that are not a map are shown as stored.
export function headersView(of) {
  if (of.headers_base64) return h("p", {}, "Headers that are not a map: ", h("span", { class: "mono" }, `base64:${cut(of.headers_base64, 2000)}`));
  const rows = Object.entries(of.headers ?? {});
  if (!rows.length) return null;
  return smallTable("Headers", ["Header", "Value"], rows.map(([name, value]) => [name, headerText(value)]));
}

function messageView(context, topic, message, { name, by, tenant, key, again, list, close }) {
  const at = path("topics", topic, "messages", name);
  const query = { by: by === "id" ? null : by, tenant, key };
  const asOptions = by === "id" ? {} : { "unique-key": name, tenant, key };
  const places = by === "id" ? [topic, name] : [topic];
  const manages = { allowed: may("manage", topic), reason: why("manage", topic) };
  const explained = h("div", {});
  const to = `${at}?${new URLSearchParams(Object.entries(query).filter(([, value]) => value))}`.replace(/\?$/, "");

  function explain() {
    load(explained, () => get(`${at}/why`, query, { signal: context.signal }), (explanation) => [whyView(explanation), commandLine(sandctl("message why", places, asOptions))]);
  }
  function cancel() {
    act({
      title: "Cancel the message…", verb: "Cancel it", danger: true,
      about: `One message, ${message.id}, due ${instant(message.deliver_at)}, ${bytes(message.size)}: no group receives it. It cannot be undone.`,
      command: () => sandctl("message cancel", places, { ...asOptions }),
      run: async () => { await remove(at, query); return "Cancelled"; },
      done: () => { close(); list(); },
    });
  }
  function move() {
    act({
      title: "Move the message…", verb: "Move it", about: `It is due ${instant(message.deliver_at)} (${ago(message.deliver_at)}).`,
      fields: [...WHEN_FIELDS("delay"), { name: "priority", label: "Priority", kind: "number", help: "For priority and fair topics. Empty: unchanged." }],
      command: (values) => sandctl("message move", places, { ...asOptions, ...(values.when === "now" ? { in: "0s" } : whenOptions(values)), priority: values.priority }),
      run: async (values) => {
        await patch(to, { ...(values.when === "now" ? { delay: 0 } : whenOf(values)), ...(values.priority ? { priority: Number(values.priority) } : {}) });
        return "Moved";
      },
      done: again,
    });
  }
  function change() {
    const isText = typeof message.text === "string";
    const value = isText ? message.text : message.value ?? "";
    const before = { value: asTyped(value), kind: isText ? "text" : "base64" };
    const all = Object.entries(message.headers ?? {});
    const isLine = ([header, one]) => typeof one === "string" && !/[\r\n]/.test(one) && !/[\r\n=]/.test(header) && header.trim() === header;
    const others = Object.fromEntries(all.filter((one) => !isLine(one)));
    before.headers = all.filter(isLine).map(([header, one]) => `${header}=${one}`).join("\n");
    const isOther = (values) => ({ value: values.value !== before.value || values.kind !== before.kind, headers: values.headers !== before.headers });
    const kept = Object.keys(others).length ? `These headers are not text, and are kept: ${Object.keys(others).join(", ")}.` : null;
    act({
      title: "Change the message…", verb: "Change it", about: "Changes the value and the headers; the delivery time stays. A message that a group holds cannot be changed.",
      fields: [
        { name: "value", label: "Value", kind: "textarea", value, rows: 8 },
        { name: "kind", label: "Format", kind: "select", options: VALUE_KINDS, value: before.kind },
        { name: "headers", label: "All headers", kind: "textarea", rows: 3, value: before.headers, help: kept },
      ],
      command: (values) => {
        const is = isOther(values);
        const content = payload(values.kind, values.value);
        const lines = [...headerLines(values.headers), ...Object.entries(others).filter(([, one]) => typeof one !== "object").map(([header, one]) => `${header}=${one}`)];
        return sandctl("message update", places, {
          ...asOptions,
          ...(is.value ? (content.positional.length ? { value: content.positional[0] } : content.options) : {}),
          ...(is.headers ? { header: lines, "no-headers": !lines.length } : {}),
        });
      },
      run: async (values) => {
        const is = isOther(values);
        if (!is.value && !is.headers) throw new Error("nothing was changed");
        await patch(to, { ...(is.value ? valueOf(values.kind, values.value) : {}), ...(is.headers ? { headers: { ...others, ...headersOf(values.headers) } } : {}) });
        return "Changed";
      },
      done: again,
    });
  }
  explain();
  return [
    h("div", { class: "head" }, h("h2", { class: "mono" }, message.id), badge(message.state, STATES[message.state]),
      h("div", { class: "acts" }, button("Move…", move, manages), button("Change…", change, manages), button("Cancel…", cancel, { ...manages, kind: "danger" }), h("button", { type: "button", class: "quiet", onclick: close }, "Close"))),
    h("div", { class: "columns" },
      facts([
        ["Delivered at", `${instant(message.deliver_at)} (${ago(message.deliver_at)})`], ["First due", instant(message.due_at)], ["Stored", instant(message.created_at)],
        ["Moved", message.moves ? `${plural(message.moves, "time")}, last ${instant(message.moved_at)}` : null], ["Key", keyText(message) || null], ["Unique key", keyText(message, "unique_key") || null],
        ["Priority", message.priority], ["Tenant", message.tenant], ["Time to live", message.ttl], ["Attempts at most", message.max_attempts], ["Cost", message.cost],
        ["Back-off", message.backoff ? Object.entries(message.backoff).map(([name, value]) => `${name} ${value}`).join(", ") : null], ["Partition", message.partition], ["Offset", message.offset],
      ]),
      h("div", {}, headersView(message) ?? h("p", { class: "dim" }, "No headers"))),
    h("h3", {}, "Value"), valueView(message), h("h3", {}, "Why"), explained,
  ];
}

export function whyView(explanation) {
  if (!explanation.groups.length) return h("p", { class: "dim" }, "No group reads this topic yet.");
  return explanation.groups.map((group) => h("div", {},
    h("p", {}, h("strong", {}, visible(group.group ?? "")), " ", badge(group.state ?? "", STATES[group.state]), " ", visible(group.reason ?? "")),
    facts(Object.entries(group).filter(([name, value]) => !["group", "state", "reason", "history", "lives"].includes(name) && value !== null && typeof value !== "object").map(([name, value]) => [name.replaceAll("_", " "), name.endsWith("_at") ? instant(value) : String(value)])),
    attempts(group.history ?? [])));
}

export function attempts(history) {
  if (!history.length) return null;
  const heads = ["Attempt", "Life", "Consumer", "Leased", "Ended", "Outcome", "Error"];
  return smallTable("Attempts", heads, history.map((one) => [one.attempt, one.life, one.consumer, instant(one.leased_at), instant(one.ended_at), one.outcome, one.error]), true);
}

function window_(filters) {
  const { since, until, key_prefix, unique_key_prefix } = filters;
  return Object.fromEntries(Object.entries({ since, until, key_prefix, unique_key_prefix }).filter(([, value]) => value));
}

function described(filters) {
  const names = Object.entries(window_(filters)).map(([name, value]) => `${name.replaceAll("_", " ")} ${cut(value, 40)}`);
  return names.length ? `Pending messages with ${names.join(", ")}.` : "Every pending message of the topic.";
}

function cancelMany(topic, filters, options, done) {
  const which = window_(filters);
  const isAll = !Object.keys(which).length;
  act({
    title: "Cancel many messages…", verb: "Cancel them", danger: true, typed: topic,
    about: `${described(filters)} It applies to every pending message that matches, whatever state the list is filtered by. It cannot be undone.`,
    count: async () => {
      const job = await remove(path("topics", topic, "messages"), { ...which, dry_run: true });
      return `${plural(job.matched, "message")} would be cancelled.`;
    },
    command: () => sandctl("message cancel", [topic], { ...options, state: null, all: isAll, yes: true }),
    run: async () => {
      const job = await remove(path("topics", topic, "messages"), { ...which, all: isAll ? true : null });
      return `${plural(job.done, "message")} cancelled, ${count(job.too_late)} were too late`;
    },
    done: () => done(),
  });
}

function moveMany(topic, filters, options, done) {
  const which = window_(filters);
  const isAll = !Object.keys(which).length;
  act({
    title: "Move many messages…", verb: "Move them", about: described(filters),
    fields: [{ name: "shift", label: "Shift by", value: "1h", required: true, help: "To an earlier time with a minus: -30m." }],
    count: async () => {
      const job = await patch(path("topics", topic, "messages"), { ...which, shift: "1s", dry_run: true });
      return `${plural(job.matched, "message")} would be moved.`;
    },
    command: (values) => sandctl("message move", [topic], { ...options, state: null, all: isAll, shift: values.shift.startsWith("-") ? values.shift : `+${values.shift}`, yes: true }),
    run: async (values) => {
      const job = await patch(path("topics", topic, "messages"), { ...which, shift: values.shift, ...(isAll ? { all: true } : {}) });
      return `${plural(job.done, "message")} moved, ${count(job.too_late)} were too late`;
    },
    done: () => done(),
  });
}

export const bytesOfBase64 = (text) => { try { return fromBase64(text); } catch { say("That is not base64", "note"); return null; } };
