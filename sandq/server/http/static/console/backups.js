// Backups at the location in the node's configuration: contents, increments, and progress.

import { get, path, post } from "./api.js";
import { sandctl } from "./commands.js";
import { fill, h } from "./dom.js";
import { ago, bytes, count, instant, plural, span } from "./format.js";
import { may, why } from "./rights.js";
import { act, badge, button, commandLine, denied, facts, failure, loading, table } from "./ui.js";

const RIGHTS = ["cluster", "read"];
const at = (ms) => (ms === null || ms === undefined ? null : new Date(ms).toISOString());

export function backupsView(context) {
  const head = h("div", { class: "head" }, h("h1", {}, "Backups"));
  const missing = RIGHTS.find((right) => !may(right));
  if (missing) return [head, denied(missing, "backups")];
  const container = h("div", { class: "tabled" }, loading());
  async function reload() {
    container.setAttribute("aria-busy", "true");
    try {
      fill(container, shown(await get("/backups", {}, { signal: context.signal }), reload));
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(container, error.status === 409 ? noLocation(error.message) : failure(error, reload));
    } finally {
      container.removeAttribute("aria-busy");
    }
  }
  reload();
  head.append(h("div", { class: "acts" }, button("Start a backup…", () => make(reload), { allowed: may("cluster"), reason: why("cluster"), kind: "primary" }), h("button", { type: "button", onclick: reload }, "Refresh")));
  return [head, container, commandLine(sandctl("backup list", ["URL"]))];
}

function noLocation(detail) {
  return h("section", { class: "card" }, h("h2", {}, "This node shows no backups"), h("p", {}, `${detail}.`),
    h("p", {}, "Set backup.url in its configuration to a directory or an S3 bucket. sandctl can list and create backups without it."));
}

function shown(state, reload) {
  const rows = table({
    caption: "Backups", key: (one) => one.backup_id, sort: ["begun", true], empty: "There is no backup yet.",
    columns: [
      { key: "id", label: "Backup", text: (one) => one.backup_id },
      { key: "begun", label: "Begun", text: (one) => (one.begun_ms ? `${instant(one.begun_ms)}, ${ago(at(one.begun_ms))}` : "–"), sort: (one) => one.begun_ms ?? 0 },
      { key: "took", label: "Took", kind: "number", wide: true, text: (one) => (one.ended_ms ? span(one.ended_ms - one.begun_ms) : "–"), sort: (one) => (one.ended_ms ? one.ended_ms - one.begun_ms : -1) },
      { key: "topics", label: "Topics", kind: "number", text: (one) => count(one.topics?.length), sort: (one) => one.topics?.length ?? -1, title: (one) => (one.topics ?? []).slice(0, 50).join(", ") },
      { key: "bytes", label: "Size", kind: "number", text: (one) => bytes(one.bytes), sort: (one) => one.bytes ?? -1, title: (one) => (one.plain_bytes ? `${bytes(one.plain_bytes)} of rows` : "") },
      { key: "increments", label: "Increments", kind: "number", text: (one) => count(one.increments), sort: (one) => one.increments ?? -1 },
      { key: "reach", label: "Reaches to", text: (one) => (one.reach_ms ? instant(one.reach_ms) : "–"), sort: (one) => one.reach_ms ?? 0, title: (one) => (one.reach_ms ? `Increments can restore any moment up to ${ago(at(one.reach_ms))}` : "") },
      { key: "has", label: "Has", optional: true, text: (one) => (has(one).length ? "some" : ""), cell: has, mark: (one) => JSON.stringify([one.problem, one.encrypted, one.identities, one.warnings]) },
      { key: "verify", label: "Check", cell: (one) => (one.problem ? null : button("Verify…", () => verify(one))), mark: (one) => `${one.backup_id} ${one.problem}` },
    ],
  });
  rows.set(state.backups);
  return [
    state.running && progress("A backup is running", state.running),
    state.restoring && progress("A restore is running", state.restoring),
    state.last && h("p", { class: state.last.error ? "failure" : "dim" }, state.last.error ? `The last backup failed: ${state.last.error}` : `The last backup of this server is ${state.last.backup_id}.`),
    state.last_restore && h("p", { class: state.last_restore.error ? "failure" : "dim" }, state.last_restore.error ? `The last restore failed: ${state.last_restore.error}` : `Backup ${state.last_restore.backup_id} was restored: ${Object.values(state.last_restore.topics).join(", ")}.`),
    h("section", { class: "card" }, rows.element, h("p", { class: "dim" }, "To restore a backup, or a point in time that its increments cover, use sandctl backup restore.")),
  ];
}

function has(one) {
  if (one.problem) return [badge("unusable", "bad"), " ", one.problem];
  const parts = [one.encrypted && badge("encrypted", "good"), one.identities && badge("identities"), ...(one.warnings ?? []).map((text) => badge(text, "warn"))];
  return parts.filter(Boolean).flatMap((part) => [part, " "]);
}

function progress(title, state) {
  const meter = h("i", {});
  meter.style.width = `${Math.min((100 * state.bytes_done) / Math.max(state.bytes, 1), 100)}%`;
  return h("section", { class: "card" }, h("h2", {}, title), facts([["Partitions", `${count(state.partitions_done)} of ${count(state.partitions)}`], ["Rows", `${bytes(state.bytes_done)} of about ${bytes(state.bytes)}`]]), h("div", { class: "meter", "aria-hidden": "true" }, meter));
}

function make(done) {
  act({
    title: "Start a backup", verb: "Start", about: "The backup is stored at the location in the node's configuration. One backup runs at a time; Refresh shows the progress.",
    fields: [{ name: "topics", label: "Topics", placeholder: "all", help: "Names separated by commas; empty: all topics." }],
    command: (values) => sandctl("backup create", ["URL"], { topic: named(values) }),
    run: async (values) => {
      const topics = named(values);
      const state = await post("/backups", topics.length ? { topics } : {});
      return `A backup of ${plural(state.partitions, "partition")} has started`;
    },
    done,
  });
}

const named = (values) => values.topics.split(",").map((one) => one.trim()).filter(Boolean);

function verify(one) {
  act({
    title: `Verify ${one.backup_id}`, verb: "Verify", about: "Reads and checks all of the backup and its increments. That takes as long as reading its files.",
    count: async () => `${bytes(one.bytes)}, ${plural(one.topics.length, "topic")}, ${plural(one.increments ?? 0, "increment")}.`,
    command: () => sandctl("backup verify", ["URL", one.backup_id]),
    run: async () => {
      await post(path("backups", one.backup_id, "verify"));
      return `${one.backup_id} is intact`;
    },
  });
}
