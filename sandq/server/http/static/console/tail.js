// The live tail: messages as they become due, latest delivery time first.
//
// Each update of the page's stream requests the newest messages again. Earlier rows stay, up to a limit.
// Filters are applied here: for a few matching messages, the node would read the whole log at each update.

import { get, path } from "./api.js";
import { fill, h, setText } from "./dom.js";
import { instant, nowMs, plural, PREVIEW_BYTES } from "./format.js";
import { live } from "./live.js";
import { button, problemText, table } from "./ui.js";

const ROWS = 200;
const ASKED = 100;
const ASKED_FILTERED = 500;
const AHEAD_MS = 1000; // the browser's clock may be that much behind

// `which`: filters of the list (state, key_prefix, unique_key_prefix); `leave`: called to show the list again.
export function liveTail(context, topic, which, columns, leave) {
  const rows = table({ caption: "Messages as they become due", key: (row) => row.id, page: ROWS, sort: null, empty: "No message is due.", columns });
  const status = h("p", { class: "dim", role: "status" });
  const ending = new AbortController();
  context.signal.addEventListener("abort", () => ending.abort());
  const pause = button("Pause", () => {
    isPaused = !isPaused;
    setText(pause, isPaused ? "Resume" : "Pause");
    if (!isPaused) reload();
    say();
  });
  const element = h("div", { class: "tabled" }, h("div", { class: "row" }, pause, button("Back to the list", leave), status), rows.element);
  const isFiltered = Object.values(which).some(Boolean);
  const most = isFiltered ? ASKED_FILTERED : ASKED;
  const begins = (text, prefix) => !prefix || (text ?? "").startsWith(prefix);
  const matches = (row) => (!which.state || row.state === which.state) && begins(row.key, which.key_prefix) && begins(row.unique_key, which.unique_key_prefix);
  let seen = [];
  let at = null; // time of the last response
  let isPaused = false;
  let isAsking = false;
  let trouble = null;

  function say() {
    const asOf = at === null ? "" : `, as of ${instant(new Date(at).toISOString())}`;
    const kept = `${plural(seen.length, "message")}, up to ${ROWS} are kept`;
    if (isPaused) setText(status, `Paused${asOf}: ${kept}`);
    else if (live.state === "lost") setText(status, `No connection${asOf}: the tail continues once this node answers`);
    else if (trouble) setText(status, `Not up to date${asOf}: ${trouble}`);
    else setText(status, `Live: ${kept}${isFiltered ? `; the newest ${most} are searched every 2 seconds` : ""}`);
  }
  // A row that is missing from a response that covers its offset is no longer stored.
  function merge(page) {
    const now = new Set(page.messages.map((row) => row.id));
    const before = new Set(seen.map((row) => row.id));
    const lowest = page.next === null ? "" : page.messages.at(-1).offset;
    const others = seen.filter((row) => !now.has(row.id)).map((row) => (row.offset >= lowest ? { ...row, state: "gone" } : row));
    const all = [...page.messages.filter((row) => row.state !== "delayed" && (before.has(row.id) || matches(row))), ...others];
    seen = all.sort((one, other) => (one.offset < other.offset ? 1 : one.offset > other.offset ? -1 : 0)).slice(0, ROWS);
  }
  async function reload() {
    if (isAsking || isPaused || ending.signal.aborted) return;
    isAsking = true;
    try {
      const began = nowMs();
      const until = Math.max(began, Date.parse(live.overview?.at ?? 0)) + AHEAD_MS;
      const query = { until: new Date(until).toISOString(), order: "newest", value_bytes: PREVIEW_BYTES, limit: most };
      const page = await get(path("topics", topic, "messages"), query, { signal: ending.signal });
      at = began;
      trouble = null;
      if (!isPaused) {
        merge(page);
        rows.set(seen);
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      trouble = problemText(error);
    } finally {
      isAsking = false;
    }
    say();
  }
  rows.set([]);
  say();
  const stop = context.onLive(() => {
    if (live.state === "live") reload();
    say();
  });
  reload();
  return { element, refresh: reload, end: () => { ending.abort(); stop?.(); } };
}
