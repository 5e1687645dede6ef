"""The console's views of messages, dead letters and consumers, in a real browser against a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sandq.sync
from tests.support.browser import Browser, chromium
from tests.support.console import Api, Console
from tests.support.page_checks import CONTRAST, LABELS
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import wait_until

HOSTILE = "<img src=x onerror=\"document.title='had'\"> \u202ereversed"
FAR = "2036-01-31T08:00:00Z"
SHOWN = "return [...document.querySelectorAll('main thead th:not([hidden])')].map((one) => one.innerText.trim())"
CELLS = """
const [label, within] = arguments;
const at = [...document.querySelectorAll(`${within} thead th`)].findIndex((one) => one.innerText.trim() === label);
return [...document.querySelectorAll(`${within} tbody tr`)].map((row) => row.cells[at]?.innerText.trim() ?? "");
"""
ROWS = """
const labels = [...document.querySelectorAll(`${arguments[0]} thead th`)].map((one) => one.innerText.trim());
const rows = [...document.querySelectorAll(`${arguments[0]} tbody tr`)];
return rows.map((row) => Object.fromEntries(labels.map((label, at) => [label, row.cells[at]?.innerText.trim() ?? ""])));
"""
REQUESTED = """
const all = performance.getEntriesByType("resource").map((one) => one.name);
return all.filter((one) => /previewed\\/messages/.test(one));
"""
LOOKS = """
const done = arguments[0];
import("/console/live.js").then(({ onLive, live }) => {
  let left = 2;
  const end = onLive(() => { if (live.state === "live" && --left === 0) { end(); done(); } });
});
"""
"""Script that waits until the page's stream has delivered two further updates."""


@pytest.fixture(scope="module")
def http_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, http_port: int) -> Iterator[NodeProcess]:
    environ: dict[str, Any] = {"SANDQ_LISTEN__HTTP": f"127.0.0.1:{http_port}"}
    found = NodeProcess(tmp_path_factory.mktemp("node"), **environ)
    found.start()
    yield found
    found.close()


@pytest.fixture(scope="module")
def api(node: NodeProcess, http_port: int) -> Api:
    return Api(f"http://127.0.0.1:{http_port}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def console(browser: Browser, api: Api) -> Iterator[Console]:
    browser.scheme("light")
    browser.size(1280, 900)
    found = Console(browser, api)
    yield found
    found.is_clean()


def topic(api: Api, name: str, **given: Any) -> str:
    api("POST", "/topics", {"name": name, "partitions": 2, **given})
    return name


def column(browser: Browser, label: str, within: str = "main") -> list[str]:
    """Return the texts of a column, one of each row."""
    found: list[str] = browser.run(CELLS, label, within)
    return found


def test_messages_show_a_preview_of_their_values(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "previewed", partitions=1)
    values: list[tuple[dict[str, Any], str]] = [
        ({"text": '{\n  "id": 12345678901234567890,\n  "a": [ "b" ]\n}'}, '{"id":12345678901234567890,"a":["b"]}'),
        ({"text": HOSTILE}, "<img src=x onerror=\"document.title='had'\"> \\u202ereversed"),
        ({"text": "many\n\nlines " + "x" * 400}, "many lines " + "x" * 69 + "\u2026"),
        ({"value": "/wABAgMEBQYHCAkKCwwNDg=="}, "16 B: ff 00 01 02 03 04 05 06 07 08 09 0a \u2026"),
        ({"text": "  " * 300 + "late"}, "\u2026"),
    ]  # fmt: skip
    for number, (sent, _) in enumerate(values):
        api("POST", f"/topics/{name}", {**sent, "deliver_at": FAR.replace("08:", f"{10 + number}:")})
    console.go(f"#/topics/{name}/messages")
    browser.reads("12345678901234567890", "tbody")
    assert column(browser, "Value") == [shown for _, shown in values]
    assert "had" not in str(browser.driver.title)
    assert browser.run("return document.querySelectorAll('main tbody img').length") == 0
    assert browser.run(REQUESTED) and all(["value_bytes=320" in one for one in browser.run(REQUESTED)])


def test_messages_are_listed_with_the_latest_delivery_first(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "latest")
    sent = [{"text": f"n{number}", "deliver_at": f"2036-01-31T08:{number:02}:00Z"} for number in range(3)]
    api("POST", f"/topics/{name}", {"messages": sent})
    console.go(f"#/topics/{name}/messages")
    browser.reads("n2", "tbody")
    assert column(browser, "Value") == ["n0", "n1", "n2"]
    browser.fill("order", "newest", "main")
    browser.click("List", "main")
    browser.until(lambda: column(browser, "Value") == ["n2", "n1", "n0"], "the latest is first")
    assert "--newest" in console.note_command("main")


def test_columns_that_are_empty_in_the_page_are_hidden(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "columns")
    api("POST", f"/topics/{name}", {"text": "x", "key": "k", "deliver_at": FAR})
    console.go(f"#/topics/{name}/messages")
    browser.reads("delayed", "tbody")
    assert browser.run(SHOWN) == ["Id", "State", "Delivered at", "Value", "Key", "Size", "Partition"]
    # The messages of the first page have no key; a message of the second page has a key.
    first = [{"text": "x", "deliver_at": "2035-01-31T08:00:00Z"} for _ in range(100)]
    api("POST", f"/topics/{name}", {"messages": first})
    browser.click("List", "main")
    browser.until(lambda: len(column(browser, "Id")) == 100, "a page")
    assert "Key" not in browser.run(SHOWN)
    browser.click("More", "main")
    browser.reads("1\u2013100 of 101", ".pager")
    assert "Key" not in browser.run(SHOWN)
    browser.click("\u203a", ".pager")
    browser.until(lambda: "Key" in browser.run(SHOWN), "the second page has a key")


def test_live_tail_shows_messages_as_they_come_due_and_can_be_paused(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "tailed")
    api("POST", f"/topics/{name}", {"messages": [{"text": "before"}, {"text": "far", "deliver_at": FAR}]})
    console.go(f"#/topics/{name}/messages")
    browser.reads("far", "tbody")
    browser.click("Live tail", "main")
    browser.reads("Live: 1 message", "main")
    assert column(browser, "Value") == ["before"]
    assert "--until now --newest" in console.note_command("main")
    api("POST", f"/topics/{name}", {"text": "first"})
    browser.until(lambda: column(browser, "Value") == ["first", "before"], "it comes by itself")
    browser.click("Pause", "main")
    browser.reads("Paused, as of 20", "main")
    api("POST", f"/topics/{name}", {"text": "second"})
    browser.run_async(LOOKS)
    assert column(browser, "Value") == ["first", "before"]
    browser.click("Resume", "main")
    browser.until(lambda: column(browser, "Value") == ["second", "first", "before"], "it goes on")
    (cancelled,) = [one for one in api("GET", f"/topics/{name}/messages")["messages"] if one["state"] == "ready"][1:2]
    api("DELETE", f"/topics/{name}/messages/{cancelled['id']}")
    browser.until(lambda: column(browser, "State") == ["ready", "gone", "ready"], "it stays, and is gone")
    browser.fill("key_prefix", "eu/", "main")
    browser.click("Live tail", "main")
    browser.reads("Live: 0 messages, up to 200 are kept; the newest 500 are searched", "main")
    api("POST", f"/topics/{name}", {"messages": [{"text": "us", "key": "us/1"}, {"text": "eu", "key": "eu/1"}]})
    browser.until(lambda: column(browser, "Value") == ["eu"], "only what matches comes")
    browser.fill("key_prefix", "", "main")
    browser.click("Back to the list", "main")
    browser.reads("far", "tbody")
    browser.run_async(LOOKS)
    assert "far" in browser.text("tbody"), "the tail has ended"


def test_live_tail_says_that_the_connection_is_lost(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    node = NodeProcess(tmp_path, SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}")
    node.start()
    api = Api(f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: api.status("GET", "/readyz") == 200)
        api("POST", "/topics", {"name": "cut", "partitions": 1})
        api("POST", "/topics/cut", {"text": "seen"})
        Console(browser, api).go("#/topics/cut/messages")
        browser.reads("live", ".state")
        browser.click("Live tail", "main")
        browser.reads("Live: 1 message", "main")
    finally:
        node.kill()
    browser.reads("No connection, as of 20", "main")
    assert column(browser, "Value") == ["seen"]
    browser.leave()


def kill_messages(api: Api, name: str, errors: list[str | None], group: str = "g") -> None:
    """Let one message die with each of these errors, in this order."""
    for number, error in enumerate(errors):
        api("POST", f"/topics/{name}", {"text": f"n{number}"})
        (message,) = api.lease(name, group)
        held = {"lease_token": message["lease_token"], "offset": message["offset"]}
        api("POST", f"/topics/{name}/groups/{group}/dead", held if error is None else {**held, "error": error})


def test_dead_letters_are_grouped_by_error_and_narrowed_by_a_click(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "buried")
    stack = f"Traceback\nValueError: {HOSTILE}"
    kill_messages(api, name, ["410 gone", "410 gone", stack, None, "410 gone"])
    console.go(f"#/topics/{name}/groups/g/dead")
    browser.reads("410 gone", "section")
    kinds, letters = "section[aria-label='Errors of dead letters']", "section[aria-label='List of dead letters']"
    assert column(browser, "Error", kinds)[0] == "410 gone"
    assert sorted(column(browser, "Count", kinds)) == ["1", "1", "3"]
    assert "no error" in column(browser, "Error", kinds)
    assert column(browser, "Last error", letters)[0] == "410 gone", "the newest is first"
    assert column(browser, "Last error", letters)[1] == ""
    assert "both buttons apply to 5 dead letters" in browser.text(letters)
    above = (
        "return document.querySelector(arguments[0]).compareDocumentPosition(document.querySelector(arguments[1])) & 4"
    )
    assert browser.run(above, f"{letters} button.primary", f"{letters} table"), "the actions are above the list"
    browser.run("document.querySelectorAll(`${arguments[0]} tbody button`)[0].click()", kinds)
    browser.until(lambda: column(browser, "Last error", letters) == ["410 gone"] * 3, "the list is narrowed")
    said = console.act("Redrive…", "Redrive them")
    assert "3 dead letters." in said and "--error '410 gone'" in said
    browser.click("Show all", "main")
    browser.until(lambda: len(column(browser, "Id", letters)) == 2, "two are left")
    (at,) = [at for at, text in enumerate(column(browser, "Error", kinds)) if "ValueError" in text]
    browser.run("document.querySelectorAll(`${arguments[0]} tbody button`)[arguments[1]].click()", kinds, at)
    browser.until(lambda: len(column(browser, "Id", letters)) == 1, "by the longest line of the error")
    assert "had" not in str(browser.driver.title)
    browser.run("document.querySelector('tbody input[type=checkbox]').click()")
    browser.reads("1 selected", letters)


LANDMARKS = """
const all = [...document.querySelectorAll("section[aria-label], [role=region]")].filter((one) => one.offsetParent);
return all.map((one) => one.getAttribute("aria-label"));
"""
"""Script that returns the names of regions. A screen reader lists them, so they must differ."""
VIEWS = ("#/topics/fits/messages", "#/topics/fits/groups/g", "#/topics/fits/groups/g/dead")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_views_fit_their_window_and_have_labels_and_contrast(console: Console, scheme: str, width: int) -> None:
    browser, api = console.browser, console.api
    if api.status("GET", "/topics/fits") == 404:
        name = topic(api, "fits")
        kill_messages(api, name, ["x" * 400, "503 Service Unavailable: " + "try again " * 30, None])
        api("POST", f"/topics/{name}", {"key": "k" * 80, "deliver_at": FAR, "text": "w" * 500})
        api("POST", f"/topics/{name}", {"unique_key": "u" * 80, "deliver_at": FAR, "text": "w w " * 500})
        api("POST", f"/topics/{name}", {"messages": [{"text": "y"}, {"value": "/wABAgMEBQYHCAkKCwwNDg=="}]})
        api("POST", f"/topics/{name}/groups/g/lease", {"max": 1, "wait": "10s"})
    browser.scheme(scheme)
    browser.size(width, 900)
    for view in VIEWS:
        console.go(view)
        browser.one("main tbody tr")
        for step in ("view", "tail") if view.endswith("messages") else ("view",):
            if step == "tail":
                browser.click("Live tail", "main")
                browser.reads("Live:", "main")
            browser.until(lambda: not browser.driver.find_elements("css selector", "[aria-busy]"), "it loads")
            wide = browser.run("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (view, step, wide)
            over = (
                "return [...document.querySelectorAll('main .scroll')].map((one) => one.scrollWidth - one.clientWidth)"
            )
            assert max(browser.run(over)) <= 0, (view, step)
            assert browser.run(LABELS) == [], (view, step)
            names = browser.run(LANDMARKS)
            assert len(names) == len({*names}), (view, step, names)
            assert browser.run(CONTRAST) == [], (view, step)
            display = browser.run("return getComputedStyle(document.querySelector('main tbody tr')).display")
            assert display == ("block" if width == 390 else "table-row"), "rows are cards on a phone"


def test_consumers_are_listed_with_their_leases(console: Console, node: NodeProcess) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "consumed", partitions=1)
    api("POST", f"/topics/{name}", {"messages": [{"text": f"n{number}"} for number in range(3)]})
    api.lease(name, "g")
    with sandq.sync.connect(node.address) as client:
        with client.subscribe(name, group="g", consumer_id="desk-1", credit=10) as subscription:
            next(iter(subscription))
            console.go(f"#/topics/{name}/groups/g")
            consumers = "section[aria-label='Consumers of the group']"
            first, second = holding(console, consumers, ["2", "1"])
            assert (first["Consumer"], first["Credit"]) == ("desk-1", "8")
            assert first["Address"].startswith("127.0.0.1:")
            assert (second["Address"], second["Credit"]) == ("leases by requests", "")
            assert console.note_command(consumers) == f"sandctl group consumers {name} g"
        holding(console, consumers, ["1"])
        assert "Credit" not in browser.run(SHOWN), "no consumer has a credit"


def holding(console: Console, within: str, counts: list[str]) -> list[dict[str, str]]:
    """Refresh until the consumers hold these numbers of messages. Return the rows of the consumers."""

    def rows() -> list[dict[str, str]] | None:
        console.browser.click("Refresh", "main")
        found: list[dict[str, str]] = console.browser.run(ROWS, within)
        return found if [row["Holds"] for row in found] == counts else None

    found: list[dict[str, str]] = console.browser.until(rows, f"the consumers do not hold {counts}")
    return found


def test_answer_to_an_earlier_question_is_not_shown(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "raced")
    kill_messages(api, name, ["410 gone", "503 busy"])
    console.go(f"#/topics/{name}/groups/g/dead")
    browser.reads("503 busy", "tbody")
    browser.run("""
        window.asked = [];
        window.fetchNow = window.fetch;
        window.fetch = (...all) => new Promise((go) => asked.push(() => go(fetchNow(...all))));
    """)
    try:
        browser.fill("error", "410", "main")
        browser.click("List", "main")
        browser.fill("error", "503", "main")
        browser.click("List", "main")
        browser.run("window.fetch = fetchNow; asked[1]()")
        letters = "section[aria-label='List of dead letters']"
        browser.until(lambda: column(browser, "Last error", letters) == ["503 busy"], "the later answer")
        browser.run("asked[0]()")
        browser.run_async(LOOKS)
        assert column(browser, "Last error", letters) == ["503 busy"]
    finally:
        browser.run("window.fetch = fetchNow")
