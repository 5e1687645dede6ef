// Identities with their rights and ages, and roles. The text of a token is never shown.

import { get, path, remove } from "./api.js";
import { sandctl } from "./commands.js";
import { h } from "./dom.js";
import { ago, instant, nowMs, plural } from "./format.js";
import { may, why } from "./rights.js";
import { act, badge, button, commandLine, denied, load, table } from "./ui.js";

const KINDS = { token: "token", cert: "certificate", jwt: "subject" };
const SOON_MS = 30 * 86_400_000;

const kindOf = (one) => KINDS[one.principal.split(":", 1)[0]] ?? "other";
const list = (texts) => (texts.length ? h("ul", { class: "plain" }, texts.map((text) => h("li", { class: "mono" }, text))) : h("span", { class: "dim" }, "none"));

function expiryState(one) {
  if (!one.expires_at) return "";
  const left = Date.parse(one.expires_at) - nowMs();
  return left <= 0 ? "bad" : left < SOON_MS ? "warn" : "";
}

export function accessView(context) {
  const head = h("div", { class: "head" }, h("h1", {}, "Access"));
  if (!may("security")) return [head, denied("security", "identities and roles")];
  const container = h("div", { class: "tabled" });
  const reload = () => load(container, () => Promise.all(["/identities", "/roles", "/whoami"].map((at) => get(at, {}, { signal: context.signal }))), ([{ identities }, { roles }, me]) => {
    const rows = table({
      caption: "Identities", key: (one) => one.principal, filterLabel: "Filter identities", sort: ["principal", false], empty: "There is no identity yet. Without authentication, every client may do everything.",
      columns: [
        { key: "principal", label: "Identity", text: (one) => one.principal },
        { key: "kind", label: "Kind", wide: true, text: kindOf },
        { key: "grants", label: "Rights and roles", cell: (one) => list(one.grants), mark: (one) => one.grants.join("\n") },
        { key: "created", label: "Created", text: (one) => ago(one.created_at), sort: (one) => Date.parse(one.created_at), title: (one) => instant(one.created_at) },
        { key: "expires", label: "Expires", text: (one) => (one.expires_at ? ago(one.expires_at) : "never"), sort: (one) => (one.expires_at ? Date.parse(one.expires_at) : Infinity), title: (one) => (one.expires_at ? instant(one.expires_at) : ""), state: expiryState },
        { key: "quota", label: "Quota", text: (one) => Object.entries(one.quota).map(([name, most]) => `${name.replaceAll("_", " ")}: ${most}`).join(", "), optional: true },
        { key: "note", label: "Note", text: (one) => one.note, optional: true },
        { key: "end", label: "End", cell: (one) => button(kindOf(one) === "token" ? "Revoke…" : "Delete…", () => end(one, me, reload), { allowed: may("security"), reason: why("security"), kind: "danger" }), mark: (one) => one.principal },
      ],
    });
    rows.set(identities);
    const named = table({
      caption: "Roles", key: (role) => role.name, sort: ["name", false],
      columns: [
        { key: "name", label: "Role", text: (role) => role.name },
        { key: "grants", label: "Rights", cell: (role) => list(role.grants), mark: (role) => role.grants.join("\n") },
        { key: "made", label: "Origin", cell: (role) => badge(role.built_in ? "built in" : "created"), mark: (role) => String(role.built_in) },
      ],
    });
    named.set(roles);
    return [
      h("section", { class: "card" }, h("h2", {}, "Identities"), rows.element),
      h("section", { class: "card" }, h("h2", {}, "Roles"), named.element, commandLine("sandctl role list")),
    ];
  });
  reload();
  head.append(h("div", { class: "acts" }, h("button", { type: "button", onclick: reload }, "Refresh")));
  return [head, container, commandLine("sandctl identity list")];
}

function end(one, me, done) {
  const isToken = kindOf(one) === "token";
  const name = one.principal.slice(one.principal.indexOf(":") + 1);
  act({
    title: `${isToken ? "Revoke" : "Delete"} ${one.principal}…`, verb: isToken ? "Revoke" : "Delete", danger: true, typed: one.principal,
    about: `Its connections end within a second, and its requests are refused. It cannot be undone.${one.principal === me.principal ? " You are signed in with this identity: the console signs you out." : ""}`,
    count: async () => `1 identity with ${plural(one.grants.length, "right or role", "rights and roles")}: ${one.grants.join(", ") || "none"}.`,
    command: () => (isToken ? sandctl("token revoke", [name], { yes: true }) : sandctl("identity delete", [one.principal], { yes: true })),
    run: async () => {
      await remove(isToken ? path("tokens", name) : path("identities", one.principal));
      return `${one.principal} was ${isToken ? "revoked" : "deleted"}`;
    },
    done,
  });
}
