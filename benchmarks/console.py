"""Measure how fast views of the console appear with a thousand topics: in a real browser, from recorded responses.

The responses are created once, by the code that creates them for a cluster, and replayed by a server that does nothing
else. So the row measures the page and its transfers.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from benchmarks.result import Goal, Measured, Row, Setting
from sandq.client.admin import ClusterOverview, GroupOverview, Lateness, TopicOverview
from sandq.server.http.cluster_watch import Watcher, next_view
from sandq.server.http.overview_rows import group_row
from sandq.server.http.routes_console import HEADERS, PAGE, assets

TOPICS: Final = 1000
PARTITIONS: Final = 10
BOUNDS: Final = (0.001, 0.01, 0.1)
FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
# Time at which the shown view was painted. A script in the page waits for it, because repeated requests from outside
# would increase the time of what is measured.
_WATCH: Final = """
window.painted = new Promise((done) => {
  addEventListener("DOMContentLoaded", () => new MutationObserver(() => requestAnimationFrame(() => setTimeout(() => {
    done(performance.now());
  }))).observe(document.documentElement, { attributes: true, attributeFilter: ["data-shown"] }));
});
"""
_PAINTED: Final = "window.painted.then(arguments[0]);"
_GO: Final = """
const [hash, name, done] = arguments;
const began = performance.now();
const look = () => document.documentElement.dataset.shown === name
  ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))) : setTimeout(look, 1);
location.hash = hash;
look();
"""


def recorded() -> dict[str, tuple[str, bytes]]:
    """Responses of a cluster of three nodes, by path: media type and body."""
    topics, named = {}, []
    for number in range(TOPICS):
        name = f"team{number % 40}.topic{number:04}"
        groups = {
            group: GroupOverview(group=group, ready=number % 7, leased=3, consumers=2) for group in ("work", "audit")
        }
        topics[name] = TopicOverview(
            name=name,
            kind="timer",
            partitions=PARTITIONS,
            led=PARTITIONS,
            messages=1000 * number,
            delayed=400 * number,
            dead=number % 3,
            schedules=2,
            bytes=90_000 * number,
            stored=number % 900,
            sent=number % 800,
            acked=number % 700,
            lateness=Lateness(BOUNDS, (50, 40, 9, 1)),
            group_count=2,
            groups=groups,
        )
        leaders = [f"node{(number + partition) % 3 + 1}" for partition in range(PARTITIONS)]
        named.append({"name": name, "kind": "timer", "partitions": PARTITIONS, "replicas": 3, "leaders": leaders})
    nodes = [{"node": f"node{number}", "up": True, "standing": "in", "replicas": 10_000} for number in (1, 2, 3)]
    info = {"cluster": "recorded", "node": "node1", "version": "0", "nodes": nodes, "moving": 0, "memory": []}
    overview = ClusterOverview(1_900_000_000_000, 10_000, dict(sorted(topics.items())), {})
    events = b"".join(Watcher(None).events(next_view(None, info, overview)))
    clock: dict[str, Any] = {"drift_ms": 0, "alarm": False, "reason": None, "median_ms": 0, "peers": {}}
    rows = [group_row(topic.name, group) for topic in topics.values() for group in topic.groups.values()]
    answers: dict[str, Any] = {
        "/whoami": {"principal": "anonymous", "grants": None, "quota": {}},
        "/overview": {"groups": rows, "next": None},
        "/topics": {"topics": named},
        "/cluster": info,
        "/cluster/clock": clock,
        "/cluster/partitions": {"partitions": []},
    }
    found = {path: ("application/json", json.dumps(said).encode()) for path, said in answers.items()}
    return found | {"/overview/stream": ("text/event-stream", events)}


@contextmanager
def replayed() -> Iterator[str]:
    """Return the address of a server that replays the recorded responses."""
    answers, ended = recorded(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            file = assets().get(PAGE if path == "/" else path.removeprefix("/console/"))
            kind, body = answers.get(path) or (("", b"") if file is None else (file.media_type, file.data))
            self.send_response(200 if kind else 404)
            streams = kind == "text/event-stream"
            for name, value in ({} if file is None else HEADERS).items():
                self.send_header(name, value)
            self.send_header("content-type", kind)
            self.send_header("connection" if streams else "content-length", "close" if streams else str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            if streams:
                ended.wait()

        def log_message(self, format: str, *args: Any) -> None:
            """Block until the process is killed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def views(setting: Setting) -> Measured:
    """Load the console, and visit each view. The value is the slowest view's median."""
    found: dict[str, list[float]] = {"topics": [], "groups": [], "cluster": []}
    rounds = setting.count(15, 1)
    with tempfile.TemporaryDirectory(prefix="sandq-bench-", ignore_cleanup_errors=True) as profile, replayed() as base:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or "chromium"
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = Chrome(options, Service(shutil.which("chromedriver") or "chromedriver"))
        try:
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
            for turn in range(rounds + 1):
                driver.get("about:blank")
                driver.get(base)
                times = {"topics": driver.execute_async_script(_PAINTED)}
                for name in ("groups", "cluster"):
                    times[name] = driver.execute_async_script(_GO, f"#/{name}", name)
                if turn:  # the first view includes the start of the browser
                    for name, ms in times.items():
                        found[name].append(ms)
        finally:
            driver.quit()
    medians = {name: statistics.median(times) for name, times in found.items()}
    details = {f"{name} ms": ms for name, ms in medians.items()}
    worst = {f"{name} most ms": max(times) for name, times in found.items()}
    return Measured(rounds, max(medians.values()), details=details | worst)


ROWS = (
    Row(
        "console_view",
        "console",
        f"a view of the console, {TOPICS:,} topics, {TOPICS * PARTITIONS:,} partitions",
        views,
        "ms",
        Goal(200, "ms", at_least=False),
        driver="none",
    ),
)
