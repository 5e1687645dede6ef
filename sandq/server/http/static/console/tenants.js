// Tenants of a fair topic: their settings, and their messages.

import { get, patch, path } from "./api.js";
import { sandctl } from "./commands.js";
import { h } from "./dom.js";
import { count, short } from "./format.js";
import { changes } from "./group.js";
import { may, why } from "./rights.js";
import { act, button, commandLine, load, table } from "./ui.js";

export function tenantsTab(context, topic) {
  const manages = { allowed: may("manage", topic), reason: why("manage", topic) };
  const container = h("div", { class: "tabled" });
  const reload = () => load(container, () => Promise.all([get(path("topics", topic), {}, { signal: context.signal }), get(path("topics", topic, "groups"), {}, { signal: context.signal })]), ([record, { groups }]) => {
    const rules = record.settings.tenants ?? {};
    const rulesTable = table({
      caption: "Tenant settings", key: (row) => row.pattern, sort: ["pattern", false], empty: "There are none: all tenants have weight 1.",
      columns: [
        { key: "pattern", label: "Tenant, or pattern", text: (row) => row.pattern, cell: (row) => h("button", { type: "button", class: "quiet", onclick: () => change(rules, row.pattern) }, row.pattern), mark: (row) => row.pattern },
        { key: "weight", label: "Weight", kind: "number", text: (row) => row.weight ?? 1, sort: (row) => row.weight ?? 1 },
        { key: "in_flight", label: "In flight at most", kind: "number", text: (row) => (row.max_in_flight === null || row.max_in_flight === undefined ? "–" : count(row.max_in_flight)) },
        { key: "rate", label: "Rate", text: (row) => row.rate ?? "–" }, { key: "burst", label: "Burst", kind: "number", text: (row) => row.burst ?? "–" },
      ],
    });
    rulesTable.set(Object.entries(rules).map(([pattern, rule]) => ({ pattern, ...rule })));
    const sums = new Map();
    for (const group of groups) for (const part of group.partitions) for (const one of part.tenants ?? []) {
      const name = `${one.tenant} ${group.group}`;
      const known = sums.get(name) ?? { tenant: one.tenant, group: group.group, ready: 0, in_flight: 0, weight: one.weight, rate: one.rate };
      known.ready += one.ready;
      known.in_flight += one.in_flight;
      sums.set(name, known);
    }
    const waiting = table({
      caption: "Messages of tenants", key: (row) => `${row.tenant} ${row.group}`, sort: ["ready", true], filterLabel: "Filter tenants", empty: "No tenant has messages.",
      columns: [
        { key: "tenant", label: "Tenant", text: (row) => row.tenant }, { key: "group", label: "Group", text: (row) => row.group },
        { key: "ready", label: "Ready", kind: "number", text: (row) => short(row.ready), sort: (row) => row.ready },
        { key: "in_flight", label: "In flight", kind: "number", text: (row) => short(row.in_flight), sort: (row) => row.in_flight },
        { key: "weight", label: "Weight", kind: "number", text: (row) => row.weight }, { key: "rate", label: "Rate", wide: true, text: (row) => row.rate ?? "–" },
      ],
    });
    waiting.set([...sums.values()]);
    return [
      h("section", { class: "card" }, h("h2", {}, "Tenant settings"), rulesTable.element, h("div", { class: "row" }, button("Set a tenant…", () => change(rules, ""), { ...manages, kind: "primary" }))),
      h("section", { class: "card" }, h("h2", {}, "Messages of tenants"), h("p", { class: "dim" }, "The 100 tenants of each partition with the most ready messages."), waiting.element),
      commandLine(sandctl("tenant list", [topic])),
    ];
  });

  function change(rules, pattern) {
    const rule = rules[pattern] ?? {};
    const then = (values) => ({
      ...(values.weight ? { weight: Number(values.weight) } : {}), ...(values.max_in_flight ? { max_in_flight: Number(values.max_in_flight) } : {}),
      ...(values.rate ? { rate: values.rate } : {}), ...(values.burst ? { burst: Number(values.burst) } : {}),
    });
    act({
      title: pattern ? `Set ${pattern}` : "Set a tenant", verb: "Set", about: "Settings of one tenant, of all with a prefix (acme.*), or of all tenants (*). Other tenants' settings stay.",
      fields: [
        { name: "pattern", label: "Tenant, or pattern", value: pattern, required: true },
        { name: "weight", label: "Weight", kind: "number", value: rule.weight ?? "" }, { name: "max_in_flight", label: "In flight at most", kind: "number", value: rule.max_in_flight ?? "" },
        { name: "rate", label: "Rate", value: rule.rate ?? "", placeholder: "10/s" }, { name: "burst", label: "Burst", kind: "number", value: rule.burst ?? "" },
        { name: "remove", label: "Remove these settings", kind: "checkbox" },
      ],
      command: (values) => sandctl("tenant set", [topic, values.pattern || "PATTERN"], values.remove ? { remove: true } : { weight: values.weight, "max-in-flight": values.max_in_flight, rate: values.rate, burst: values.burst }),
      preview: (values) => changes(rules, { [values.pattern]: values.remove ? undefined : then(values) }),
      run: async (values) => {
        // Read the current settings first: those of other tenants may have changed meanwhile.
        const all = { ...((await get(path("topics", topic))).settings.tenants ?? {}) };
        if (values.remove) delete all[values.pattern];
        else all[values.pattern] = then(values);
        await patch(path("topics", topic), { settings: { tenants: all } });
        return "Tenant settings changed";
      },
      done: reload,
    });
  }
  reload();
  return [container];
}
