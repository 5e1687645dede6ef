// Keys of a compacted topic.

import { get, path, put, send } from "./api.js";
import { sandctl } from "./commands.js";
import { fill, h } from "./dom.js";
import { ago, base64Of, cut, fromBase64, instant, valueBytes } from "./format.js";
import { headersView, keyText, valueView } from "./messages.js";
import { asTyped, payload, VALUE_KINDS, valueOf } from "./produce.js";
import { may, why } from "./rights.js";
import { act, button, commandLine, facts, failure, field, load, loading, table, valuesOf } from "./ui.js";

// Encode a text for paths and queries in base64url: the next page may begin at a key that is not UTF-8.
const inPath = (text) => base64Of(new TextEncoder().encode(text)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

export function keysTab(context, topic) {
  const at = path("topics", topic, "keys");
  const writes = { allowed: may("produce", topic), reason: why("produce", topic) };
  const list = h("div", { class: "card" });
  const detail = h("section", { class: "card", hidden: true, tabindex: -1, "aria-label": "The key" });
  const same = commandLine("");
  const form = h("form", { class: "card", role: "search", "aria-label": "Keys" }, h("div", { class: "fields" },
    field({ name: "prefix", label: "Key begins with" }),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "List"), button("Put a key…", () => change(null), { ...writes, kind: "primary" }))));
  const name = (row) => keyText(row);
  const textOf = (row) => (row.key === undefined ? fromBase64(row.key_base64) : row.key);
  const rows = table({
    caption: "Keys", key: (row) => JSON.stringify([row.key, row.key_base64]), // a text may look like bytes
    sort: null, page: 100, empty: "No key matches.",
    columns: [
      { key: "key", label: "Key", text: name, cell: (row) => h("button", { type: "button", class: "quiet mono", onclick: () => showRow(row) }, cut(name(row), 100)), mark: name },
      { key: "version", label: "Version", wide: true, text: (row) => row.version },
      { key: "expires", label: "Expires", text: (row) => (row.expires_at ? ago(row.expires_at) : "never"), title: (row) => instant(row.expires_at) },
      { key: "partition", label: "Partition", kind: "number", wide: true, text: (row) => row.partition },
    ],
  });
  let found = [];
  // A key that is not UTF-8 is sent in base64url; the API returns it in base64.
  const locate = (row) => (row.key === undefined ? [`${at}/${row.key_base64.replaceAll("+", "-").replaceAll("/", "_")}`, { encoding: "base64" }] : row.key === "." || row.key === ".." ? [`${at}/${btoa(row.key)}`, { encoding: "base64" }] : [`${at}/${encodeURIComponent(row.key)}`, {}]);

  async function reload(start = null) {
    const { prefix } = valuesOf(form);
    same.update(sandctl("kv scan", [topic], { prefix, "keys-only": true }));
    if (!start) {
      found = [];
      fill(list, loading());
    }
    try {
      const page = await get(at, { prefix: inPath(prefix), encoding: "base64", limit: 100, start }, { signal: context.signal });
      found = [...found, ...page.keys];
      rows.set(found);
      fill(list, rows.element, page.next && h("button", { type: "button", onclick: () => reload(page.next) }, "More"));
    } catch (error) {
      if (error.name !== "AbortError") fill(list, failure(error, () => reload(start)));
    }
  }
  const again = () => { detail.hidden = true; reload(); };

  async function showRow(row) {
    const [where, query] = locate(row);
    detail.hidden = false;
    await load(detail, () => get(where, { ...query, as_text: true }, { signal: context.signal }), (entry) => [
      h("div", { class: "head" }, h("h2", { class: "mono" }, cut(name(entry), 200)), h("div", { class: "acts" },
        button("Change…", () => change(entry), writes), button("Delete…", () => drop(entry), { ...writes, kind: "danger" }),
        h("button", { type: "button", class: "quiet", onclick: () => { detail.hidden = true; } }, "Close"))),
      facts([["Version", entry.version], ["Expires", entry.expires_at ? `${instant(entry.expires_at)} (${ago(entry.expires_at)})` : "never"], ["Partition", entry.partition]]),
      headersView(entry), valueView(entry), commandLine(sandctl("kv get", [topic, textOf(entry)])),
    ], { fresh: true });
    detail.focus();
  }
  function change(entry) {
    const isText = entry === null || typeof entry.text === "string";
    const value = entry ? entry.text ?? entry.value ?? "" : "";
    const kind = isText ? "text" : "base64";
    const isSame = (values) => entry !== null && values.value === asTyped(value) && values.kind === kind;
    const lines = Object.entries(entry?.headers ?? {}).filter(([, one]) => typeof one !== "object").map(([header, one]) => `${header}=${one}`);
    act({
      title: entry ? "Change the key" : "Put a key", verb: "Put",
      about: entry ? `Only if it still has the version ${entry.version}.${entry.headers_base64 ? " Its headers are not a map, and are removed." : ""}` : "An existing value is replaced.",
      fields: [
        ...(entry ? [] : [{ name: "key", label: "Key", required: true }]),
        { name: "value", label: "Value", kind: "textarea", rows: 8, value },
        { name: "kind", label: "Format", kind: "select", options: VALUE_KINDS, value: kind },
        { name: "ttl", label: "Time to live", placeholder: "the topic's" },
      ],
      command: (values) => {
        const content = payload(values.kind, isSame(values) ? value : values.value);
        const key = entry ? textOf(entry) : values.key || "KEY";
        return entry
          ? sandctl("kv cas", [topic, key, ...content.positional], { ...content.options, version: entry.version, ttl: values.ttl, header: lines })
          : sandctl("kv put", [topic, key, ...content.positional], { ...content.options, ttl: values.ttl });
      },
      run: async (values) => {
        const [where, query] = locate(entry ?? { key: values.key });
        const done = await put(where, { ...valueOf(values.kind, isSame(values) ? value : values.value), ...(entry?.headers ? { headers: entry.headers } : {}), ...(values.ttl ? { ttl: values.ttl } : {}) }, { query, headers: entry ? { "if-match": `"${entry.version}"` } : {} });
        return `Version ${done.version}`;
      },
      done: again,
    });
  }
  function drop(entry) {
    act({
      title: "Delete the key…", verb: "Delete", danger: true, typed: cut(name(entry), 200),
      about: `Only if it still has the version ${entry.version}. Its old values are kept for the topic's history only.`,
      count: async () => `1 key, ${valueBytes(entry)?.length ?? 0} bytes.`,
      command: () => sandctl("kv delete", [topic, textOf(entry)], { version: entry.version }),
      run: async () => {
        const [where, query] = locate(entry);
        await send("DELETE", where, { query, headers: { "if-match": `"${entry.version}"` } });
        return "Deleted";
      },
      done: again,
    });
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); reload(); });
  reload();
  return [form, detail, list, same];
}
