"""Make the pictures of the console in the documents: `python -m tests.support.console_pictures`.

The command starts a node, fills it with data, runs traffic for a minute and takes the pictures. It needs two minutes
and Chromium."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from PIL import Image

from tests.support.browser import Browser, chromium
from tests.support.console import Api, Console
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import wait_until

IMAGES: Final = ROOT / "docs" / "images"
WORK_S: Final = 75
TOPICS: Final = (
    *(("orders", "timer", 6), ("orders.reminders", "timer", 3), ("billing.invoices", "timer", 3)),
    *(("mails", "fair", 2), ("alerts", "priority", 2), ("config", "compacted", 3), ("webhooks", "timer", 4)),
)


def fill(api: Api, rng: random.Random) -> None:
    """Create topics, messages for the next days, and groups in all states."""
    for name, kind, partitions in TOPICS:
        api("POST", "/topics", {"name": name, "kind": kind, "partitions": partitions})
    for hours in range(36):
        delays = [60 + int(rng.random() * 3600 * (hours + 0.3)) for _ in range(50)]
        orders = [
            {"json": {"order": 17_000 + at, "customer": "ada"}, "key": f"customer-{at % 40}", "delay": f"{delay}s"}
            for at, delay in enumerate(delays)
        ]
        api("POST", "/topics/orders", {"messages": orders})
    soon = [{"text": "ship", "delay": f"{int(rng.expovariate(1 / 1400)) + 30}s"} for _ in range(2500)]
    api("POST", "/topics/orders", {"messages": soon})
    message = {"json": {"order": 17, "call": "Ada", "about": "two parcels"}, "headers": {"source": "desk"}}
    api("POST", "/topics/orders", {**message, "delay": "2h", "unique_key": "call-ada"})
    api("POST", "/topics/orders.reminders", {"messages": [{"text": "r", "delay": f"{at}m"} for at in range(1, 900)]})
    for key in ("app/theme", "app/port", "limits/eu"):
        api("PUT", f"/topics/config/keys/{key}", {"text": "on"})
    daily = {"name": "close", "text": "close the day", "cron": "0 18 * * MON-FRI", "zone": "Europe/Berlin"}
    api("POST", "/topics/orders/schedules", daily)
    api("POST", "/topics/orders/schedules", {"name": "poll", "text": "poll", "every": "2m"})
    api("POST", "/topics/mails", {"messages": [{"text": "m", "tenant": rng.choice("ab")} for _ in range(40)]})
    api("POST", "/topics/mails/groups/post/lease", {"max": 3, "wait": "5s"})
    api("POST", "/topics/billing.invoices", {"messages": [{"json": {"invoice": at}} for at in range(30)]})
    for number, held in enumerate(api.lease("billing.invoices", "mailer", 9)):
        settled = {"lease_token": held["lease_token"], "offset": held["offset"]}
        error = "410 gone: the account is closed" if number % 2 else "550 no such mailbox"
        api("POST", "/topics/billing.invoices/groups/mailer/dead", {**settled, "error": error})
    api("POST", "/topics/billing.invoices/groups/mailer/pause")


def work(api: Api, rng: random.Random) -> None:
    """Produce and consume messages for `WORK_S` seconds."""
    end = time.monotonic() + WORK_S
    while time.monotonic() < end:
        count = rng.randint(1, 4)
        api("POST", "/topics/orders", {"messages": [{"text": "now", "delay_ms": 50 * at} for at in range(count)]})
        api("POST", "/topics/webhooks", {"messages": [{"text": "hook"}] * count})
        time.sleep(0.4)
        for topic, group in (("orders", "shipping"), ("orders", "audit"), ("webhooks", "push")):
            api("POST", f"/topics/{topic}/groups/{group}/lease", {"max": 40, "ack": True, "wait": "100ms"})


def picture(browser: Browser, name: str) -> None:
    """Save a picture of the window, in few colors."""
    file = IMAGES / f"console-{name}.png"
    browser.picture(file)
    Image.open(file).convert("RGB").quantize(192, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1024} KiB")


def settled(browser: Browser) -> None:
    """Wait until nothing is loading."""
    time.sleep(1.5)
    browser.until(lambda: not browser.run("return document.querySelector('[aria-busy]')"), "it loads")


def main() -> None:
    """Make all pictures."""
    rng, port = random.Random(7), free_port()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, chromium() as browser:
        environ: dict[str, Any] = {**{"SANDQ_LISTEN__HTTP": f"127.0.0.1:{port}", "SANDQ_SQL__HTTP": "true"}}
        node = NodeProcess(Path(directory), **environ)
        node.start()
        try:
            api = Api(f"http://127.0.0.1:{port}")
            wait_until(lambda: api.status("GET", "/readyz") == 200)
            fill(api, rng)
            work(api, rng)
            console = Console(browser, api)
            browser.size(1280, 800)
            console.go("")
            settled(browser)
            picture(browser, "topics")
            browser.scheme("dark")
            browser.size(1280, 1370)
            console.go("#/topics/orders")
            browser.click("10 minutes")
            settled(browser)
            picture(browser, "timeline")
            browser.scheme("light")
            browser.size(1280, 800)
            console.go("#/topics/billing.invoices/groups/mailer/dead")
            settled(browser)
            browser.click("Redrive…", "main")
            settled(browser)
            picture(browser, "dead-letters")
            browser.click("Cancel", "dialog")
            browser.size(1280, 860)
            console.go("#/sql")
            browser.fill(
                "statement",
                "SELECT `key`, COUNT(*) AS messages, MIN(deliver_at) AS first FROM messages\n"
                "WHERE topic = 'orders' AND deliver_at BETWEEN NOW() AND NOW() + INTERVAL 6 HOUR\n"
                "AND `key` IS NOT NULL "
                "GROUP BY `key` ORDER BY messages DESC LIMIT 8",
                "form",
            )
            browser.click("Run", "form")
            browser.reads("8 rows", "main")
            settled(browser)
            picture(browser, "sql")
            browser.size(390, 800)
            console.go("")
            settled(browser)
            picture(browser, "phone")
        finally:
            node.kill()


if __name__ == "__main__":
    main()
