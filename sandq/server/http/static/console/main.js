// The page: sign-in, navigation between views, and the one stream that keeps the views up to date.

import { get, token } from "./api.js";
import { fill, h, setText } from "./dom.js";
import { instant, setUtc, showsUtc, zone } from "./format.js";
import { live, onLive, start, stop } from "./live.js";
import { may, setGrants } from "./rights.js";
import { failure, say } from "./ui.js";
import { topicsView } from "./topics.js";

const main = document.getElementById("main");
const top = document.getElementById("top");
let leaving = null;
let me = null;
let isAsking = false;

// The first view is loaded with the page; the others when the browser is idle, or when they are opened.
const ROUTES = [
  [/^#?\/?$/, async () => topicsView],
  [/^#\/topics\/([^/]+)\/groups\/([^/]+)(?:\/([a-z]+))?$/, async () => (await import("./group.js")).groupView],
  [/^#\/topics\/([^/]+)(?:\/([a-z]+))?$/, async () => (await import("./topic.js")).topicView],
  [/^#\/groups$/, async () => (await import("./groups.js")).groupsView],
  [/^#\/limits$/, async () => (await import("./limits.js")).limitsView],
  [/^#\/lateness$/, async () => (await import("./slo.js")).sloView],
  [/^#\/sql$/, async () => (await import("./sql.js")).sqlView],
  [/^#\/cluster$/, async () => (await import("./cluster.js")).clusterView],
  [/^#\/access$/, async () => (await import("./access.js")).accessView],
  [/^#\/audit$/, async () => (await import("./audit.js")).auditView],
  [/^#\/backups$/, async () => (await import("./backups.js")).backupsView],
];

// Links at the top: [address, text, key to press after g, required rights].
const LINKS = [
  ["#/", "Topics", "t"], ["#/groups", "Groups", "g"], ["#/limits", "Limits", "m"], ["#/lateness", "Lateness", "l"], ["#/sql", "SQL", "s"], ["#/cluster", "Cluster", "c"],
  ["#/access", "Access", "a", ["security"]], ["#/audit", "Audit", "u", ["security"]], ["#/backups", "Backups", "b", ["cluster", "read"]],
];

// Pages of the documentation about the views; the first match counts.
const HELP = [
  [/^#\/topics\/[^/]+\/groups\/[^/]+\/dead/, "topics/dead-letters/#dead-letters"],
  [/^#\/topics\/[^/]+\/groups/, "topics/groups/"],
  [/^#\/topics\/[^/]+\/messages/, "topics/#the-states-of-a-message"],
  [/^#\/topics\/[^/]+\/schedules/, "schedules/"],
  [/^#\/topics\/[^/]+\/keys/, "keys/"],
  [/^#\/topics\/[^/]+\/tenants/, "topics/kinds/#priority-and-fair-topics"],
  [/^#\/topics\/[^/]+\/settings/, "topics/#settings-of-a-topic"],
  [/^#\/topics\/[^/]+\/partitions/, "operations/clusters/#leaders"],
  [/^#\/topics\/[^/]+/, "topics/pending/#forecast"],
  [/^#\/groups/, "topics/groups/"],
  [/^#\/limits/, "topics/groups/#named-limits"],
  [/^#\/lateness/, "slo/"],
  [/^#\/sql/, "sql/"],
  [/^#\/cluster/, "operations/alerts/#what-needs-attention"],
  [/^#\/access/, "security/#rights-grants-roles"],
  [/^#\/audit/, "security/quotas/#the-audit-log"],
  [/^#\/backups/, "backup/"],
  [/^/, "console/"],
];

const help = h("a", { class: "who", target: "_blank", rel: "noopener" }, "Help");
const links = h("ul");
const showLinks = () => fill(links, LINKS.filter(([, , , rights = []]) => rights.every((right) => may(right))).map(([href, text]) => h("li", {}, h("a", { href }, text))));

function shell() {
  showLinks();
  const state = h("span", { class: "state", role: "status" }, h("i", { "aria-hidden": "true" }), h("span", {}, ""));
  const name = h("span", {});
  const zoned = h("button", { type: "button", class: "quiet", title: "Time zone of all times: click to change it", onclick: () => {
    setUtc(!showsUtc());
    sayZone();
    route();
  } });
  const sayZone = () => {
    setText(zoned, zone());
    zoned.setAttribute("aria-label", `Times are in ${zone()}: change the zone`);
  };
  sayZone();
  fill(top, h("div", { class: "bar" },
    h("a", { class: "brand", href: "#/" }, h("img", { src: "console/icon.svg", alt: "" }), name),
    h("nav", { "aria-label": "Views" }, links),
    h("div", { class: "right" },
      state,
      zoned,
      help,
      h("a", { href: "docs", class: "who", target: "_blank", rel: "noopener" }, "API"),
      h("span", { class: "who" }, me?.principal ?? ""),
      token.get() && h("button", { type: "button", class: "quiet", onclick: signOut }, "Sign out"))));
  const show = () => {
    setText(name, live.cluster?.cluster ?? "sandq");
    const words = { connecting: "connecting", live: "live", lost: "no connection", resting: "resting" };
    const seen = live.state === "lost" && live.overview ? `, as of ${instant(live.overview.at)}` : "";
    setText(state.lastElementChild, words[live.state] + seen);
    document.body.dataset.live = live.state;
    state.dataset.state = live.state;
    state.title = live.trouble ?? "The page is kept up to date by a stream.";
  };
  onLive(show);
  onLive(seeGrants);
  show();
}

// The server ends the stream when the rights of the user change, so fetch them again after each reconnection.
let wasLost = false;
function seeGrants() {
  if (live.state === "lost") wasLost = true;
  else if (wasLost && live.state === "live") {
    wasLost = false;
    get("/whoami").then((now) => {
      const isSame = JSON.stringify(now.grants) === JSON.stringify(me.grants);
      me = now;
      setGrants(now.grants);
      if (isSame) return;
      showLinks();
      route();
    }).catch(() => {});
  }
}

function mark() {
  const current = LINKS.find(([href]) => href !== "#/" && location.hash.startsWith(href))?.[0] ?? "#/";
  for (const one of top.querySelectorAll("nav a")) {
    if (one.getAttribute("href") === current) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  help.setAttribute("href", `help/${HELP.find(([pattern]) => pattern.test(location.hash))[1]}`);
}

async function route(event) {
  if (isAsking) return;
  const began = performance.now();
  if (leaving) leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  for (const open of document.querySelectorAll("dialog")) open.close();
  const context = {
    signal,
    onLive(listener) {
      const end = onLive(listener);
      signal.addEventListener("abort", end);
      if (live.overview) listener(live);
      return end;
    },
    again: () => route(),
  };
  for (const [pattern, load] of ROUTES) {
    const found = pattern.exec(location.hash);
    if (!found) continue;
    let names;
    try {
      names = found.slice(1).map((one) => (one === undefined ? undefined : decodeURIComponent(one)));
    } catch {
      break; // the address is not valid UTF-8
    }
    mark();
    try {
      const view = await load();
      if (signal.aborted) return;
      fill(main, view(context, ...names));
    } catch (error) {
      fill(main, failure(error));
      throw error;
    }
    document.title = `${[...names.filter(Boolean).reverse(), live.cluster?.cluster ?? "sandq"].join(" · ")}`;
    if (event) main.focus({ preventScroll: true });
    if (event) scrollTo(0, 0);
    performance.measure("view", { start: began, end: performance.now() });
    return;
  }
  fill(main, h("div", { class: "card" }, h("h1", {}, "Page not found"), h("p", {}, h("a", { href: "#/" }, "Go to the topics"))));
}

function signOut() {
  token.forget();
  stop();
  location.reload();
}

async function begin() {
  start();
  try {
    me = await get("/whoami");
  } catch (error) {
    if (error.status === 401) return signIn(token.get() ? "This token is not valid, or no longer valid." : "");
    stop();
    fill(main, failure(error, begin));
    return;
  }
  setGrants(me.grants);
  shell();
  if (!may("read")) say("Only topics on which you have the right read are shown.", "note");
  window.addEventListener("hashchange", route);
  await route();
  const rest = () => Promise.all(["topic", "groups", "group", "slo", "sql", "cluster", "access", "audit", "backups"].map((name) => import(`./${name}.js`))).catch(() => {});
  if (window.requestIdleCallback) requestIdleCallback(rest, { timeout: 3000 });
}

async function signIn(why) {
  if (isAsking) return;
  isAsking = true;
  stop();
  // Remove everything that the previous user saw.
  if (leaving) leaving.abort();
  for (const open of document.querySelectorAll("dialog")) open.close();
  document.getElementById("said").replaceChildren();
  fill(top, h("div", { class: "bar" }, h("span", { class: "brand" }, h("img", { src: "console/icon.svg", alt: "" }), "sandq")));
  const { loginView } = await import("./login.js");
  fill(main, loginView(why, async (text) => {
    token.set(text);
    try {
      await get("/whoami");
    } catch (error) {
      token.forget();
      throw error;
    }
    location.reload();
  }));
  main.querySelector("input")?.focus();
}

window.addEventListener("unauthenticated", (event) => {
  if (me) signIn(event.detail);
});

// Keys: / filters, g and a letter opens a view, ? shows the keys.
let went = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (event.key === "/") {
    const filter = main.querySelector("input[type=search]");
    if (!filter) return;
    event.preventDefault();
    filter.focus();
  } else if (event.key === "?") say(`Keys: / filters, ${LINKS.map(([, text, key]) => `g ${key} ${text}`).join(", ")}; on a chart + − ← → 0`, "note");
  else if (went) location.hash = LINKS.find(([, , key]) => key === event.key)?.[0] ?? location.hash;
  went = event.key === "g" && !went;
});

begin();
