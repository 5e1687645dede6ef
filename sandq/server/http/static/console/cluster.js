// The cluster: nodes, leaders, moving partitions, clocks, and findings that need attention.

import { get, path, post, remove } from "./api.js";
import { sandctl } from "./commands.js";
import { fill, h } from "./dom.js";
import { bytes, count, instant, milliseconds, plural } from "./format.js";
import { live } from "./live.js";
import { may, why } from "./rights.js";
import { findingsCard, topicHref } from "./topics.js";
import { act, badge, button, commandLine, facts, load, table, tile } from "./ui.js";

const SQUARES = 120;

export function clusterView(context) {
  const leads = { allowed: may("cluster"), reason: why("cluster") };
  const tiles = { nodes: tile("Nodes up"), partitions: tile("Partitions led"), moving: tile("Moving"), level: tile("Feature level"), version: tile("Version"), leader: tile("Metadata leader") };
  const nodes = h("div", { class: "nodes" });
  const findings = findingsCard();
  const fine = h("p", { class: "dim", hidden: true }, "Nothing needs attention.");
  const moves = h("section", { class: "card" });
  const clock = h("section", { class: "card" });
  const memory = h("section", { class: "card" });
  let leaders = new Map();
  let last = "";
  let known = "";

  function show() {
    const cluster = live.cluster;
    if (!cluster) return;
    const all = cluster.nodes ?? [];
    const up = all.filter((node) => node.up).length;
    const led = [...live.topics.values()].reduce((sum, row) => sum + row.partitions - row.without_leader, 0);
    const unled = [...live.topics.values()].reduce((sum, row) => sum + row.without_leader, 0);
    tiles.nodes.set(`${up} of ${all.length}`, up < all.length ? "bad" : "");
    tiles.partitions.set(unled ? `${count(led)} of ${count(led + unled)}` : count(led), unled ? "bad" : "");
    tiles.moving.set(count(cluster.moving), cluster.moving ? "warn" : "");
    tiles.level.set(cluster.feature_level ?? "–");
    tiles.version.set(cluster.version);
    tiles.leader.set(cluster.metadata_leader ?? "none", cluster.metadata_leader ? "" : "bad");
    findings.set(cluster.findings);
    fine.hidden = cluster.findings.length > 0;
    const upNow = JSON.stringify(all.map((node) => [node.node, node.up]));
    if (upNow !== known && known) whoLeads().catch((error) => { if (error.name !== "AbortError") throw error; });
    known = upNow;
    const mark = JSON.stringify([all, [...leaders], cluster.metadata_leader]);
    if (mark !== last) fill(nodes, all.map((node) => nodeCard(node, leaders, all, leads)));
    last = mark;
    document.documentElement.dataset.shown = "cluster";
  }
  context.onLive(show);

  async function whoLeads() {
    const { topics } = await get("/topics", {}, { signal: context.signal });
    const found = new Map();
    for (const topic of topics) for (const node of topic.leaders) found.set(node, (found.get(node) ?? 0) + 1);
    leaders = found;
    show();
  }
  whoLeads().catch((error) => { if (error.name !== "AbortError") throw error; });

  const askMoves = () => load(moves, () => get("/cluster/partitions", { moving: true }, { signal: context.signal }), ({ partitions }) => {
    const rows = table({
      caption: "Moving partitions", key: (row) => `${row.topic} ${row.partition}`, sort: ["topic", false], page: 50, href: (row) => topicHref(row.topic, "partitions"), empty: "Nothing moves.",
      columns: [
        { key: "topic", label: "Topic", text: (row) => row.topic }, { key: "partition", label: "Partition", kind: "number", text: (row) => row.partition, sort: (row) => row.partition },
        { key: "to", label: "Target nodes", text: (row) => row.nodes.join(", ") }, { key: "steps", label: "In progress", text: (row) => row.steps.join("; ") },
      ],
    });
    rows.set(partitions);
    return [h("h2", {}, "Moves"), rows.element, h("div", { class: "row" }, h("button", { type: "button", onclick: askMoves }, "Refresh"))];
  });
  askMoves();

  const loadClock = () => load(clock, () => get("/cluster/clock", {}, { signal: context.signal }), (reply) => {
    const peers = Object.entries(reply.peers);
    return [
      h("h2", {}, "Clock"),
      facts([["Of", live.cluster?.node ?? "this node"], ["Drift", `${milliseconds(reply.drift_ms)} (wall clock minus guarded clock)`], ["Median of the others", reply.median_ms === null ? "no nodes to compare with" : milliseconds(reply.median_ms)], ["Alarm", reply.alarm ? `yes: ${reply.reason}` : "no"]]),
      peers.length > 0 && h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "unseen" }, "Clocks of the other nodes"), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Node"), h("th", { scope: "col", class: "number" }, "Ahead of this one"))), h("tbody", {}, peers.map(([node, ms]) => h("tr", {}, h("th", { scope: "row" }, node), h("td", { class: "number", data: { state: Math.abs(ms) > 100 ? "warn" : "" } }, milliseconds(ms))))))),
      h("div", { class: "row" },
        button("Accept the wall clock…", () => act({ title: "Accept the wall clock", verb: "Accept", danger: true, about: `The node follows its wall clock again, which is ${milliseconds(reply.drift_ms)} away from its guarded clock. Messages may become due at once, or later.`, count: async () => "1 node.", command: () => sandctl("cluster clock accept"), run: async () => { await post("/cluster/clock/accept"); return "It follows the wall clock"; }, done: loadClock }), leads),
        h("button", { type: "button", onclick: loadClock }, "Refresh")),
    ];
  });
  loadClock();
  load(memory, () => get("/cluster", {}, { signal: context.signal }), (reply) => {
    const rows = reply.memory.filter((one) => one.bytes > 0 || one.limit > 0);
    return [h("h2", {}, "Memory"), h("p", { class: "dim" }, `Memory held by each account of ${reply.node}, and its limit`), h("dl", { class: "facts" }, rows.map((one) => {
      const meter = h("i", {});
      meter.style.width = `${Math.min((100 * one.bytes) / Math.max(one.limit, 1), 100)}%`;
      return [h("dt", {}, one.account.replaceAll("_", " ")), h("dd", {}, `${bytes(one.bytes)} of ${bytes(one.limit)}`, h("div", { class: "meter", "aria-hidden": "true" }, meter))];
    }))];
  });
  return [
    h("div", { class: "head" }, h("h1", {}, "Cluster")),
    h("dl", { class: "tiles" }, Object.values(tiles).map((one) => one.element)),
    findings.element, fine, nodes, moves, h("div", { class: "columns" }, clock, memory), commandLine("sandctl cluster nodes"),
  ];
}

function nodeCard(node, leaders, all, leads) {
  const led = node.up ? leaders.get(node.node) ?? 0 : 0; // other nodes lead its partitions now
  const most = Math.max(...all.map((one) => one.replicas), 1);
  const bad = !node.up || node.sick;
  const state = bad ? "bad" : node.standing === "in" ? "" : "warn";
  const scale = Math.max(Math.ceil(most / SQUARES), 1);
  const squares = h("div", { class: "squares", role: "img", "aria-label": `${node.node} leads ${led} and holds ${node.replicas} partitions` });
  for (let at = 0; at < Math.round(node.replicas / scale); at += 1) squares.append(h("i", { class: at < Math.round(led / scale) ? null : "held" }));
  return h("article", { class: "node", data: { state } },
    h("header", {}, h("h3", {}, node.node), node.voter && badge("votes"), badge(bad ? (node.up ? "sick" : "down") : node.standing === "in" ? "up" : node.standing, bad ? "bad" : node.standing === "in" ? "good" : "warn")),
    squares,
    h("p", { class: "dim" }, `${node.up ? `leads ${count(led)}, holds` : "leads none while it is down, holds"} ${plural(node.replicas, "partition")}${scale > 1 ? ` (a square is ${scale})` : ""}`),
    node.sick && h("p", { class: "wrong" }, node.sick),
    facts([["Clients", node.client], ["HTTP", node.http], ["Zone", node.zone], ["Weight", node.weight], ["Version", node.version], ["Member", node.member && `${node.member}${node.since_ms ? ` since ${instant(node.since_ms)}` : ""}`], ["Levels", node.feature_levels?.join(" to ")]]),
    h("div", { class: "row" },
      node.standing === "draining"
        ? button("Undo drain…", () => drain(node, true), leads)
        : button("Drain…", () => drain(node, false), leads),
      button("Remove…", () => forget(node, led), { ...leads, kind: "danger" })));
}

function drain(node, undo) {
  act({
    title: undo ? `Undo the drain of ${node.node}` : `Drain ${node.node}`, verb: undo ? "Undo" : "Drain", danger: !undo,
    about: undo ? "It may hold replicas again." : "Its replicas move to other nodes; it stays registered. Refused if the other nodes are too few.",
    count: undo ? undefined : async () => `${plural(node.replicas, "replica")} move.`,
    command: () => sandctl("cluster drain", [node.node], { undo }),
    run: async () => { await post(path("cluster", "nodes", node.node, "drain"), { undo }); return undo ? "It is a regular node again" : "It is being drained"; },
  });
}

function forget(node, led) {
  act({
    title: `Remove ${node.node}…`, verb: "Remove", danger: true, typed: node.node,
    about: "For a node that was drained, or has failed permanently. Data that only this node holds is lost.",
    count: async () => `It leads ${plural(led, "partition")} and holds ${plural(node.replicas, "replica")}.`,
    command: () => sandctl("cluster remove", [node.node], { yes: true }),
    run: async () => { await remove(path("cluster", "nodes", node.node)); return "It is being removed"; },
  });
}
