// Schedules of a topic, with their next runs.

import { get, path, post, remove } from "./api.js";
import { sandctl } from "./commands.js";
import { fill, h } from "./dom.js";
import { ago, count, cut, instant } from "./format.js";
import { payload, VALUE_KINDS, valueOf } from "./produce.js";
import { may, why } from "./rights.js";
import { act, badge, button, commandLine, facts, failure, field, load, loading, table, valuesOf } from "./ui.js";

const STATES = { active: "good", paused: "warn", ended: "" };

export function schedulesTab(context, topic) {
  const at = path("topics", topic, "schedules");
  const manages = { allowed: may("manage", topic), reason: why("manage", topic) };
  const list = h("div", { class: "card" });
  const detail = h("section", { class: "card", hidden: true, tabindex: -1, "aria-label": "The schedule" });
  const same = commandLine("");
  const form = h("form", { class: "card", role: "search", "aria-label": "Schedules" }, h("div", { class: "fields" },
    field({ name: "prefix", label: "Name begins with" }),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "List"), button("Create a schedule…", create, { ...manages, kind: "primary" }))));
  const rows = table({
    caption: "Schedules", key: (row) => JSON.stringify([row.name, row.tenant]), sort: null, page: 100, empty: "There is no schedule.",
    columns: [
      { key: "name", label: "Name", text: (row) => row.name, cell: (row) => h("button", { type: "button", class: "quiet", onclick: () => showRow(row) }, cut(row.name, 80)), mark: (row) => row.name },
      { key: "state", label: "State", cell: (row) => badge(row.state, STATES[row.state]), mark: (row) => row.state },
      { key: "when", label: "Recurs", text: (row) => (row.cron ? `${row.cron} ${row.zone ?? "UTC"}` : `every ${row.every}`) },
      { key: "next", label: "Next run", text: (row) => (row.next_at ? `${instant(row.next_at)} (${ago(row.next_at)})` : "–"), title: (row) => row.next_local ?? "" },
      { key: "fired", label: "Fired", kind: "number", wide: true, text: (row) => count(row.fired) },
      { key: "missed", label: "Missed", kind: "number", wide: true, text: (row) => count(row.missed), state: (row) => (row.missed ? "warn" : "dim") },
      { key: "tenant", label: "Tenant", wide: true, text: (row) => row.tenant ?? "" },
    ],
  });
  let found = [];
  async function reload(after = null) {
    const { prefix } = valuesOf(form);
    same.update(sandctl("schedule list", [topic], { prefix }));
    if (!after) {
      found = [];
      fill(list, loading());
    }
    try {
      const page = await get(at, { prefix, limit: 100, after }, { signal: context.signal });
      found = [...found, ...page.schedules];
      rows.set(found);
      fill(list, rows.element, page.next && h("button", { type: "button", onclick: () => reload(page.next) }, "More"));
    } catch (error) {
      if (error.name !== "AbortError") fill(list, failure(error, () => reload(after)));
    }
  }
  const again = () => { detail.hidden = true; reload(); };

  async function showRow(row) {
    const one = path("topics", topic, "schedules", row.name);
    const query = { tenant: row.tenant };
    const named = { tenant: row.tenant };
    const to = (action) => `${one}/${action}${row.tenant ? `?tenant=${encodeURIComponent(row.tenant)}` : ""}`;
    detail.hidden = false;
    const simple = (title, verb, about, action) => act({ title, verb, about, command: () => sandctl(`schedule ${action}`, [topic, row.name], named), run: async () => { await post(to(action)); return "Done"; }, done: again });
    await load(detail, () => Promise.all([get(one, query, { signal: context.signal }), get(`${one}/next`, { ...query, count: 10 }, { signal: context.signal })]), ([entry, { next }]) => [
      h("div", { class: "head" }, h("h2", {}, entry.name), badge(entry.state, STATES[entry.state]), h("div", { class: "acts" },
        entry.paused ? button("Resume…", () => simple("Resume the schedule", "Resume", "It fires from the next occurrence on.", "resume"), manages) : button("Pause…", () => simple("Pause the schedule", "Pause", "Occurrences while it is paused are skipped.", "pause"), manages),
        button("Send now…", () => simple("Send its message now", "Send", "Sends one message in addition to all occurrences.", "trigger"), manages),
        button("Delete…", () => act({
          title: "Delete the schedule…", verb: "Delete", danger: true, typed: entry.name, about: "The message of its next occurrence is cancelled; a message that is already due stays.",
          count: async () => `1 schedule; ${next.length >= 10 ? "10 or more" : next.length} occurrences to come, the next ${next.length ? instant(next[0].fire_at) : "never"}.`,
          command: () => sandctl("schedule delete", [topic, entry.name], named), run: async () => { await remove(one, query); return "Deleted"; }, done: again,
        }), { ...manages, kind: "danger" }),
        h("button", { type: "button", class: "quiet", onclick: () => { detail.hidden = true; } }, "Close"))),
      h("div", { class: "columns" },
        facts([["Recurs", entry.cron ? `${entry.cron} (${entry.zone ?? "UTC"})` : `every ${entry.every}`], ["From", entry.start && instant(entry.start)], ["Until", entry.end && instant(entry.end)], ["Jitter", entry.jitter], ["When missed", entry.misfire], ["Not while unacked in", entry.overlap_group], ["Key", entry.key], ["Changed", instant(entry.changed_at)]]),
        h("div", {}, h("h3", {}, "Next runs"), next.length ? h("ol", {}, next.map((fire) => h("li", {}, `${fire.local ?? instant(fire.occurrence_at)} (${ago(fire.fire_at)})`))) : h("p", { class: "dim" }, "None.")),
        h("div", {}, h("h3", {}, "Last runs"), entry.history.length ? h("ul", {}, entry.history.map((run) => h("li", {}, `${instant(run.occurrence_at)}: ${run.outcome}`))) : h("p", { class: "dim" }, "None yet."))),
      commandLine(sandctl("schedule show", [topic, entry.name], named)),
    ], { fresh: true });
    detail.focus();
  }

  function create() {
    const times = (values) => (values.how === "cron" ? { cron: values.times, ...(values.zone ? { zone: values.zone } : {}) } : { every: values.times });
    let requested = 0;
    const shown = h("div", {});
    act({
      title: "Create a schedule", verb: "Create",
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "how", label: "Recurs", kind: "select", options: [["cron", "by a cron expression"], ["every", "at intervals"]] },
        { name: "times", label: "Expression, or interval", required: true, value: "0 9 * * MON-FRI", help: "0 9 * * MON-FRI or @daily; an interval is 15m or 1h." },
        { name: "zone", label: "Time zone", value: Intl.DateTimeFormat().resolvedOptions().timeZone, help: "For a cron expression." },
        { name: "value", label: "Value", kind: "textarea", rows: 3 }, { name: "kind", label: "Format", kind: "select", options: VALUE_KINDS.slice(0, 2), value: "text" },
        { name: "key", label: "Key" }, { name: "jitter", label: "Jitter", placeholder: "none" }, { name: "tenant", label: "Tenant", help: "In a fair topic." },
      ],
      command: (values) => sandctl("schedule create", [topic, values.name || "NAME", ...payload(values.kind, values.value).positional], { ...times(values), key: values.key, jitter: values.jitter, tenant: values.tenant }),
      preview: (values) => {
        const mine = (requested += 1);
        setTimeout(async () => {
          if (mine !== requested || !values.times) return;
          try {
            const { next } = await post("/schedules/preview", { ...times(values), count: 3 });
            if (mine === requested) fill(shown, h("small", {}, `Next: ${next.map((fire) => fire.local ?? fire.fire_at).join(", ")}`));
          } catch (error) {
            if (mine === requested) fill(shown, h("small", { class: "wrong" }, error.message));
          }
        }, 300);
        return shown;
      },
      run: async (values) => {
        const made = await post(at, { name: values.name, ...times(values), ...valueOf(values.kind, values.value), ...Object.fromEntries(["key", "jitter", "tenant"].filter((name) => values[name]).map((name) => [name, values[name]])) });
        return `Next run: ${instant(made.next_at)}`;
      },
      done: again,
    });
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); reload(); });
  reload();
  return [form, detail, list, same];
}
