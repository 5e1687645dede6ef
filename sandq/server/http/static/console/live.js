// The current state of the cluster, updated by one stream for the whole page. The stream stops while the tab is hidden.

import { events } from "./api.js";
import { setNow } from "./format.js";

export const live = {
  topics: new Map(),
  cluster: null,
  overview: null,
  state: "connecting", // or "live", "lost", "resting"
  trouble: null,
};

const listeners = new Set();
let ending = null;
let waits = null;
let delayMs = 500;

export function onLive(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function notify() {
  for (const listener of [...listeners]) listener(live);
}

export function start() {
  stop();
  ending = new AbortController();
  follow(ending);
}

export function stop() {
  if (ending) ending.abort();
  clearTimeout(waits);
  ending = null;
}

async function follow(mine) {
  let fresh = new Map();
  live.state = live.overview ? "lost" : "connecting";
  try {
    await events("/overview/stream", {
      signal: mine.signal,
      onOpen() {
        delayMs = 500;
        live.trouble = null;
      },
      onEvent(name, data) {
        if (name === "topics") for (const row of data) fresh.set(row.topic, row);
        else if (name === "gone") for (const topic of data) fresh.delete(topic);
        else if (name === "cluster") live.cluster = data;
        else if (name === "look") {
          // The update is complete: show it.
          live.topics = fresh;
          live.overview = data;
          setNow(data.at);
          live.state = "live";
          live.trouble = null;
          notify();
        } else if (name === "trouble" || name === "error") {
          live.trouble = data.detail;
          live.state = "lost";
          notify();
        }
      },
    });
  } catch (error) {
    if (mine.signal.aborted) return;
    live.trouble = error.message;
    if (error.status === 401 || error.status === 403) return;
  }
  if (mine.signal.aborted) return;
  live.state = "lost";
  fresh = new Map();
  notify();
  waits = setTimeout(() => mine === ending && follow(mine), delayMs * (0.75 + Math.random() / 2));
  delayMs = Math.min(delayMs * 2, 15_000);
}

document.addEventListener("visibilitychange", () => {
  if (!ending && !document.hidden && live.state === "resting") start();
  else if (ending && document.hidden) {
    stop();
    live.state = "resting";
    notify();
  }
});
