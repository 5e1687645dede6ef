"""The console runs in a real browser, against a real node. The tests use every view, and every action once.

All tests share one node and one browser. If the browser logs an error, a warning or a violation of the policy, the test
fails.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from sandq import new_push_secret
from sandq.model.health import SITUATIONS
from tests.support.browser import Browser, chromium
from tests.support.console import Api, Console, check_command
from tests.support.page_checks import CONTRAST, LABELS
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import wait_until

HOSTILE = "<script>document.title='had'</script><img src=x onerror=\"document.title='had'\">"
FAR = "2036-01-31T08:00:00Z"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    port = free_port()
    node = NodeProcess(
        tmp_path_factory.mktemp("node"),
        SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}",
        SANDQ_SQL__HTTP="true",
        SANDQ_BACKUP__URL=str(tmp_path_factory.mktemp("backups")),
    )
    node.start()
    yield Api(f"http://127.0.0.1:{port}")
    node.close()


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


def test_a_message_is_produced_with_its_own_attempts(console: Console) -> None:
    browser, api = console.browser, console.api
    topic(api, "mails.own")
    console.go("#/topics/mails.own")
    browser.reads("mails.own", "h1")
    given = {"value": "invoice", "max_attempts": "20", "backoff": "fixed", "first": "1h", "cap": "1h"}
    said = console.act("Produce…", "Produce", **given)
    options = "--max-attempts 20 --backoff fixed --backoff-first 1h --backoff-cap 1h"
    assert f"sandctl produce mails.own invoice {options}" in said
    (message,) = api("GET", "/topics/mails.own/messages")["messages"]
    assert (message["max_attempts"], message["backoff"]["kind"], message["backoff"]["first"]) == (20, "fixed", "1h")
    console.go("#/topics/mails.own/messages")
    browser.fill("name", message["id"], "main")
    browser.click("Show", "main")
    browser.reads("kind fixed, first 1h, factor 2, cap 1h, jitter_percent 20")


def test_a_message_is_produced_with_a_cost_for_a_rate_with_a_unit(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "costly")
    console.go(f"#/topics/{name}")
    said = console.act("Produce…", "Produce", value="prompt", cost="1200")
    assert f"sandctl produce {name} prompt --cost 1200" in said
    (message,) = api("GET", f"/topics/{name}/messages")["messages"]
    assert message["cost"] == 1200
    api.lease(name, "workers")
    console.go(f"#/topics/{name}/groups/workers")
    said = console.act("Limits…", "Set them", rate="1500/s", unit="tokens")
    assert f"sandctl group limit {name} workers --rate 1500/s --unit tokens" in said
    browser.reads("1500/s tokens")
    assert api("GET", f"/topics/{name}/groups/workers")["limits"]["burst"] == 1500


def test_named_limit_is_set_used_and_deleted(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "sharing")
    api("POST", f"/topics/{name}", {"text": "a"})
    api.lease(name, "workers")
    console.go("#/limits")
    said = console.act("Set a limit…", "Set it", name="llm", rate="1500/s", unit="tokens", max_in_flight="50")
    assert "sandctl limit set llm --max-in-flight 50 --rate 1500/s --unit tokens" in said
    browser.reads("1500/s tokens")
    browser.reads("in force")
    console.go(f"#/topics/{name}/groups/workers")
    said = console.act("Limits…", "Set them", limit="llm")
    assert f"sandctl group limit {name} workers --limit llm" in said
    browser.reads("Named limit")
    assert api("GET", f"/topics/{name}")["group_limits"]["workers"]["limit"] == "llm"
    console.act("Limits…", "Set them", limit="")
    console.go("#/limits")
    said = console.act("Pause…", "Pause", **{"for": "10m"})
    assert "sandctl limit pause llm --for 10m" in said
    browser.reads("by an operator")
    said = console.act("Resume…", "Resume")
    assert "sandctl limit resume llm" in said
    browser.reads("in force")
    said = console.act("Delete…", "Delete")
    assert "sandctl limit delete llm" in said
    browser.reads("There are none.")
    assert api("GET", "/limits")["limits"] == []


def test_a_debounced_message_is_produced(console: Console) -> None:
    browser, api = console.browser, console.api
    topic(api, "pages.debounced")
    console.go("#/topics/pages.debounced")
    browser.reads("pages.debounced", "h1")
    earlier = {"text": "draft", "unique_key": "page-7", "on_conflict": "debounce", "delay": "2h"}
    first = api("POST", "/topics/pages.debounced", earlier)
    given = {"value": "final", "when": "delay", "delay": "1h", "unique_key": "page-7"}
    said = console.act("Produce…", "Produce", **given, on_conflict="debounce", max_wait="90m")
    assert "--in 1h --unique-key page-7 --on-conflict debounce --max-wait 90m" in said
    (message,) = api("GET", "/topics/pages.debounced/messages")["messages"]
    assert message["id"] != first["id"]
    assert api("GET", f"/topics/pages.debounced/messages/{message['id']}")["text"] == "final"


def test_a_throttled_message_is_produced(console: Console) -> None:
    browser, api = console.browser, console.api
    topic(api, "alarms.throttled")
    console.go("#/topics/alarms.throttled")
    browser.reads("alarms.throttled", "h1")
    first = api(
        "POST",
        "/topics/alarms.throttled",
        {"text": "1", "unique_key": "disk", "on_conflict": "throttle", "window": "1h"},
    )
    given = {"value": "2", "unique_key": "disk"}
    said = console.act("Produce…", "Produce", **given, on_conflict="throttle", window="1h", edge="both")
    assert "--unique-key disk --on-conflict throttle --window 1h --edge both" in said
    found = api("GET", "/topics/alarms.throttled/messages")["messages"]
    assert len(found) == 2 and found[0]["id"] == first["id"]


def test_topics_are_made_shown_purged_and_deleted(console: Console) -> None:
    browser, api = console.browser, console.api
    console.go("")
    browser.reads("Topics", "h1")
    said = console.act("Create a topic…", "Create", name="made.here", kind="timer", partitions="4", lease="1m")
    assert "sandctl topic create made.here --partitions 4 --lease 1m" in said
    browser.reads("made.here", "h1")
    assert api("GET", "/topics/made.here")["settings"]["lease"] == "1m"
    said = console.act("Produce…", "Produce", value="hello", key="k", when="delay", delay="2h", headers="source=desk")
    assert "sandctl produce made.here hello --key k --in 2h --header source=desk" in said
    api("POST", "/topics/made.here", {"text": "more", "delay": "30m"})
    browser.click("Refresh", "main")
    browser.reads("Due in the next 1 hour: 1 message")
    browser.click("24 hours")
    browser.reads("Due in the next 24 hours: 2 messages")
    browser.one("[data-chart=due] .chart canvas")
    browser.click("+", "[data-chart=due]")
    browser.click("As a table", "[data-chart=due]")
    assert len(browser.driver.find_elements("css selector", "[data-chart=due] .astable tbody tr")) == 2
    axes = len(browser.driver.find_elements("css selector", "[data-chart=due] .u-axis"))
    assert axes == 2, "one axis for times, and one for messages"
    browser.reads("Nothing was delivered in this time.", "[data-chart=delivered]")
    console.note_command("main")
    browser.click("Topics", "nav")
    browser.reads("made.here", "tbody")
    said = console.act("Purge…", "Purge", typed="made.here") if open_topic(console, "made.here") else ""
    assert "2 messages (2 not due yet) and 0 dead letters" in said
    assert sum(row["messages"] for row in api("GET", "/topics/made.here")["stats"]) == 0
    said = console.act("Delete…", "Delete", typed="made.here")
    assert "4 partitions" in said
    assert api.status("GET", "/topics/made.here") == 404


def test_rates_of_a_topic_are_drawn_and_follow_the_stream(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "paced")
    console.go(f"#/topics/{name}/timeline")
    browser.one("[data-chart=rates] canvas")
    browser.click("As a table", "[data-chart=rates]")
    legend = browser.text("[data-chart=rates] .legend").split()
    assert legend == ["Produced", "Delivered", "Acked", "Became", "dead", "letters"]
    produced = "return [...document.querySelectorAll('[data-chart=rates] tbody td')].some((one) => one.innerText > 0)"

    def is_drawn() -> bool:
        api("POST", f"/topics/{name}", {"text": "one more"})
        return bool(browser.run(produced))

    browser.until(is_drawn, "what is produced while the page is open is drawn")
    assert "Produced: " in browser.run("return document.querySelector('[data-chart=rates] .chart').ariaLabel")


def test_help_link_follows_the_view(console: Console) -> None:
    name = topic(console.api, "explained")
    for view, page in (
        ("", "console/"),
        (f"#/topics/{name}/schedules", "schedules/"),
        (f"#/topics/{name}/messages", "topics/#the-states-of-a-message"),
        ("#/cluster", "operations/alerts/#what-needs-attention"),
    ):
        console.go(view)
        console.browser.one(f'header a[href="help/{page}"]')


def open_topic(console: Console, name: str) -> bool:
    console.browser.click(name, "tbody")
    console.browser.reads(name, "h1")
    return True


def test_messages_are_looked_at_and_changed(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "letters")
    api("POST", f"/topics/{name}", {"json": {"order": 7}, "unique_key": "call-ada", "delay": "2h"})
    bulk = [{"text": f"n{number}", "key": f"bulk-{number}", "delay": "3h"} for number in range(5)]
    api("POST", f"/topics/{name}", {"messages": bulk})
    console.go(f"#/topics/{name}/messages")
    browser.reads("call-ada", "tbody")
    browser.fill("unique_key_prefix", "call-", "main")
    browser.click("List", "main")
    browser.until(lambda: "bulk-1" not in browser.text("main"), "the list is not filtered")
    assert "--unique-key-prefix call-" in browser.text(".same .command")
    browser.fill("name", "call-ada", "main")
    browser.fill("by", "unique_key", "main")
    browser.click("Show", "main")
    browser.reads('"order": 7', "pre")
    browser.click("Hex", "main")
    browser.reads("7b 22 6f 72", "pre")
    browser.click("Text", "main")
    browser.reads('{"order":7}', "pre")
    browser.reads("No group reads this topic yet.")
    console.act("Move…", "Move it", when="delay", delay="30m")
    assert api("GET", f"/topics/{name}/messages/call-ada?by=unique_key")["moves"] == 1
    browser.reads("1 time, last")
    console.act("Change…", "Change it", value='{"order": 8}', kind="json", headers="by=desk")
    browser.reads('"order": 8', "pre")
    assert api("GET", f"/topics/{name}/messages/call-ada?by=unique_key")["headers"] == {"by": "desk"}
    said = console.act("Cancel…", "Cancel it")
    assert "It cannot be undone" in said
    assert api.status("GET", f"/topics/{name}/messages/call-ada?by=unique_key") == 404
    for key in ("ada", "bob"):
        api("POST", f"/topics/{name}", {"text": f"of {key}", "key": key, "unique_key": "call-1", "delay": "2h"})
    browser.fill("name", "call-1", "main")
    browser.fill("key", "bob", "main")
    browser.click("Show", "main")
    browser.reads("of bob", "pre")
    console.act("Move…", "Move it", when="delay", delay="30m")
    assert api("GET", f"/topics/{name}/messages/call-1?by=unique_key&key=bob")["moves"] == 1
    browser.reads("1 time, last")
    console.act("Cancel…", "Cancel it")
    assert api.status("GET", f"/topics/{name}/messages/call-1?by=unique_key&key=bob") == 404
    api("DELETE", f"/topics/{name}/messages/call-1?by=unique_key&key=ada")
    browser.fill("unique_key_prefix", "", "main")
    browser.fill("key_prefix", "bulk-", "main")
    browser.click("List", "main")
    browser.reads("bulk-3", "tbody")
    said = console.act("Move all these…", "Move them", shift="1h")
    assert "5 messages would be moved." in said
    said = console.act("Cancel all these…", "Cancel them", typed=name)
    assert "5 messages would be cancelled." in said
    assert api("GET", f"/topics/{name}/messages")["messages"] == []


def refreshed(browser: Browser, text: str) -> bool:
    """Refresh, and return whether the table has the text. Tests retry, because the overview is cached for a second."""
    browser.click("Refresh", "main")
    return text in browser.text("tbody")


def test_groups_are_held_up_limited_and_deleted(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "held")
    api("POST", f"/topics/{name}", {"messages": [{"text": "a"}, {"text": "b"}, {"text": "c"}]})
    api.lease(name, "billing")
    console.go("#/groups")
    browser.until(lambda: refreshed(browser, "billing"), "the group is not listed")
    console.go(f"#/topics/{name}/groups")
    browser.click("billing", "tbody")
    browser.reads("billing", "h1")
    console.act("Pause…", "Pause")
    browser.reads("The group receives nothing:")
    console.go("")
    browser.reads("billing of held is paused", ".findings")
    console.go(f"#/topics/{name}/groups/billing")
    console.act("Resume…", "Resume")
    console.act("Pause…", "Pause", **{"for": "2h"})
    browser.reads("it is paused until 20")
    console.act("Resume…", "Resume")
    said = console.act("Limits…", "Set them", max_in_flight="5", rate="10/s", burst="2")
    assert "max_in_flight" in said and "none" in said
    browser.reads("of 5")
    console.act("Settings…", "Set them", max_attempts="3", kind="fixed", first="5s")
    browser.reads("max_attempts", "main")
    browser.click("Seek…", "main")
    browser.fill("place", "earliest", "dialog")
    browser.reads("3 messages that are stored are delivered", "dialog")
    browser.click("Cancel", "dialog")
    said = console.act("Seek…", "Seek", typed="billing", place="latest")
    assert "3 messages are due and not acked now, and count as acked then" in said
    browser.reads("0", ".tile dd")
    console.act("Delete…", "Delete", typed="billing")
    assert api.status("GET", f"/topics/{name}/groups/billing") == 404


def test_paused_tenants_and_keys_of_a_group_are_listed_and_resumed(console: Console) -> None:
    browser, api = console.browser, console.api
    pauses = "section[aria-label='Pauses of the group']"
    name = topic(api, "of-tenants", kind="fair")
    api("POST", f"/topics/{name}", {"text": "a", "tenant": "acme"})
    api.lease(name, "senders")
    console.go(f"#/topics/{name}/groups/senders")
    browser.reads("No tenant or key is paused.", pauses)
    browser.click("Pause…", "main")
    browser.fill("part", "tenant", "dialog")
    browser.click("Pause", "dialog")
    browser.reads("Enter the tenant.", "dialog")
    browser.click("Cancel", "dialog")
    console.act("Pause…", "Pause", part="tenant", tenant="acme", **{"for": "1h"})
    assert console.commands[-1] == f"sandctl group pause {name} senders --tenant acme --for 1h"
    browser.reads("Paused: 1 tenant", ".note")
    browser.reads("acme", f"{pauses} tbody")
    assert console.note_command(pauses) == f"sandctl group pauses {name} senders"
    console.act("Resume…", "Resume", within=pauses)
    assert console.commands[-1] == f"sandctl group resume {name} senders --tenant acme"
    browser.reads("No tenant or key is paused.", pauses)

    name = topic(api, "of-keys", settings={"ordering": "key"})
    api("POST", f"/topics/{name}", {"text": "a", "key": "k"})
    api.lease(name, "senders")
    for paused in ({"key_base64": "/w=="}, {"key": ""}, {"key": "a" * 1025}, {"key": "b" * 1025}):
        api("POST", f"/topics/{name}/groups/senders/pause", paused)
    console.go(f"#/topics/{name}/groups/senders")
    browser.reads("base64:/w==", f"{pauses} tbody")
    assert browser.text(f"{pauses} tbody").count("a key above 1,024 bytes") == 2
    browser.reads("the empty key", f"{pauses} tbody")
    console.act("Resume…", "Resume", within=pauses)
    assert console.commands[-1] == f"sandctl group resume {name} senders --key ''"
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    console.act("Pause…", "Pause", part="key", key="k", until=until.strftime("%Y-%m-%dT%H:%M"))
    assert f"sandctl group pause {name} senders --key k --until 20" in console.commands[-1]
    browser.reads("20", f"{pauses} tbody [data-label=Until]")
    ends = [row["paused_until"] for row in api("GET", f"/topics/{name}/groups/senders/pauses")["pauses"]]
    assert ends[0] is not None and ends[1] is None, "the key k is paused until an instant"


def test_dialog_after_change_shows_no_old_count(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "counted")
    api("POST", f"/topics/{name}", {"text": "a"})
    api.lease(name, "g")
    console.go(f"#/topics/{name}/groups/g")
    browser.reads("Seek…", "main")
    browser.run("""
        window.asked = [];
        window.askedBefore = window.fetch;
        window.fetch = (...all) => new Promise((go) => asked.push(() => go(askedBefore(...all))));
    """)
    browser.click("Seek…", "main")
    browser.fill("typed", "g", "dialog")
    told, is_disabled, later = browser.run_async("""
        const done = arguments[0];
        const change = (place) => {
          const select = document.querySelector("dialog [name=place]");
          select.value = place;
          select.dispatchEvent(new Event("input", { bubbles: true }));
        };
        change("earliest");
        for (const go of asked.splice(0)) go();
        setTimeout(() => {
          const extent = document.querySelector("dialog .extent").textContent;
          const looked = [extent, document.querySelector("dialog [type=submit]").disabled];
          window.fetch = (...all) => { asked.push(all); return askedBefore(...all); };
          change("latest");
          document.querySelector("dialog").close();
          asked.length = 0;
          setTimeout(() => done([...looked, asked.length]), 301);
        }, 250);
    """)
    browser.run("window.fetch = askedBefore")
    assert (told, is_disabled) == ("Counting…", True), "the extent must not be that of the former choice"
    assert later == 0, "a closed dialog must not count messages"


def test_dead_letters_are_chosen_redriven_and_purged(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "lost", partitions=1)
    api("POST", f"/topics/{name}", {"messages": [{"text": f"n{number}", "key": f"k{number}"} for number in range(3)]})
    for message in api.lease(name, "g", 3):
        held = {"lease_token": message["lease_token"], "offset": message["offset"]}
        api("POST", f"/topics/{name}/groups/g/dead", {**held, "error": f"410 {message['key']}"})
    console.go(f"#/topics/{name}/groups/g/dead")
    browser.reads("410 k2", "tbody")
    browser.fill("error", "k1", "main")
    browser.click("List", "main")
    browser.until(lambda: "410 k2" not in browser.text("main"), "the list is not filtered")
    said = console.act("Redrive…", "Redrive them")
    assert "1 dead letter." in said and "sandctl dead redrive lost -g g --error k1" in said
    browser.fill("error", "", "main")
    browser.click("List", "main")
    browser.until(lambda: len(browser.driver.find_elements("css selector", "tbody .mono")) == 2, "two are left")
    browser.run("document.querySelector('tbody .mono').click()")
    browser.reads("Last error", "section")
    browser.run("document.querySelector('tbody input[type=checkbox]').click()")
    browser.reads("1 selected")
    said = console.act("Purge…", "Purge them", typed=name)
    assert "1 dead letter." in said and "--id" in said
    assert api("GET", f"/topics/{name}/groups/g")["dead"] == 1


def test_schedules_are_made_paused_fired_and_deleted(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "recurring")
    console.go(f"#/topics/{name}/schedules")
    browser.click("Create a schedule…", "main")
    browser.fill("name", "daily", "dialog")
    browser.fill("zone", "Europe/Berlin", "dialog")
    browser.fill("times", "0 18 * * MON-FRI", "dialog")
    browser.reads("Next: ", "dialog")
    console.note_command("dialog")
    browser.click("Create", "dialog")
    browser.reads("0 18 * * MON-FRI Europe/Berlin", "tbody")
    browser.click("daily", "tbody")
    browser.reads("Next runs")
    console.act("Pause…", "Pause")
    browser.reads("paused", "tbody")
    browser.click("daily", "tbody")
    console.act("Send now…", "Send")
    assert len(api("GET", f"/topics/{name}/schedules/daily")["history"]) == 1
    browser.click("daily", "tbody")
    console.act("Resume…", "Resume")
    browser.click("daily", "tbody")
    said = console.act("Delete…", "Delete", within="section", typed="daily")
    assert "1 schedule" in said
    assert api.status("GET", f"/topics/{name}/schedules/daily") == 404


def test_keys_are_put_changed_and_deleted(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "config", kind="compacted")
    api("PUT", f"/topics/{name}/keys/_wA?encoding=base64", {"value": "/wEC"})
    console.go(f"#/topics/{name}/keys")
    browser.reads("base64:/wA=", "tbody")
    console.act("Put a key…", "Put", key="app/theme", value="dark")
    browser.reads("app/theme", "tbody")
    browser.click("app/theme", "tbody")
    browser.reads("dark", "pre")
    said = console.act("Change…", "Put", value="light", kind="text")
    assert "sandctl kv cas config app/theme light --version" in said
    assert api("GET", f"/topics/{name}/keys/app%2Ftheme")["text"] == "light"
    browser.click("app/theme", "tbody")
    browser.reads("light", "pre")
    console.act("Delete…", "Delete", within="section", typed="app/theme")
    browser.until(lambda: "app/theme" not in browser.text("tbody"), "the key is gone")
    browser.click("base64:/wA=", "tbody")
    browser.reads("ff 01 02", "pre")


def test_tenants_are_set_and_settings_changed_with_a_preview(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "mails", kind="fair")
    api("POST", f"/topics/{name}", {"text": "hello", "tenant": "acme"})
    api("POST", f"/topics/{name}/groups/post/lease", {"max": 1, "wait": "10s"})
    api("POST", f"/topics/{name}", {"text": "again", "tenant": "globex"})
    console.go(f"#/topics/{name}/tenants")
    console.act("Set a tenant…", "Set", pattern="acme", weight="3")
    browser.reads("acme", "tbody")
    assert api("GET", f"/topics/{name}")["settings"]["tenants"]["acme"]["weight"] == 3
    console.go(f"#/topics/{name}/settings")
    browser.reads("How long a consumer may hold a message. A duration (30s, 10m, 2h). Default: 30s.", "main small")
    browser.fill("lease", "2m", "main")
    browser.fill("partitions", "3", "main")
    browser.reads("30s", "main table")
    browser.reads("Changed; the current value is 30s.", ".changed")
    assert "sandctl topic update mails --partitions 3 --lease 2m" in browser.text("main .command")
    said = console.act("Change…", "Change")
    assert "30s" in said and "2m" in said
    assert api("GET", f"/topics/{name}")["settings"]["lease"] == "2m"
    browser.until(lambda: not browser.text(".changed"), "no change is marked")
    console.go(f"#/topics/{name}/partitions")
    browser.reads("node1", "tbody")
    browser.click("Transfer…", "tbody")
    browser.reads("no other node can lead it", "#said")


def test_settings_take_durations_and_sizes_and_show_errors_at_their_fields(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "tuned", settings={"max_message_bytes": 65536})
    console.go(f"#/topics/{name}/settings")
    browser.until(lambda: browser.run(VALUE, "max_message_bytes") == "64KiB", "a size has its unit")
    fill = """
    for (const [name, value] of Object.entries(arguments[0])) {
      const field = document.querySelector(`main [name="${name}"]`);
      field.value = value;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }
    """
    shown = """return [...document.querySelectorAll("main [name^=backoff]")].filter((one) => one.offsetParent).length"""
    assert browser.run(shown) == 5
    browser.run(fill, {"backoff.kind": "none"})
    assert browser.run(shown) == 1, "without waits, other back-off fields are omitted"
    browser.run(fill, {"backoff.kind": "linear", "backoff.first": "5 s", "backoff.jitter_percent": "10"})
    assert browser.run(shown) == 4, "a linear wait has no factor"
    browser.run(fill, {"max_message_bytes": "10 MiB", "ttl": "1h", "lease": "30 S"})
    assert len(browser.driver.find_elements("css selector", ".field.changed")) == 5, "30 S equals the former value"
    line = console.note_command("main")
    assert "--backoff linear --backoff-first 5s --backoff-jitter 10" in line
    console.act("Change…", "Change")
    settings = api("GET", f"/topics/{name}")["settings"]
    assert settings["backoff"] == {"kind": "linear", "first": "5s", "factor": 2.0, "cap": "10m", "jitter_percent": 10}
    assert (settings["max_message_bytes"], settings["ttl"], settings["lease"]) == (10 << 20, "1h", "30s")
    browser.until(lambda: not browser.driver.find_elements("css selector", ".field.changed"), "it is loaded again")
    assert browser.run(VALUE, "ttl") == "1h"
    browser.run(fill, {"lease": "13h", "backoff.first": "soon", "ttl": ""})
    browser.click("Change…", "main")
    browser.click("Change", "dialog")
    browser.until(lambda: not browser.driver.find_elements("css selector", "dialog[open]"), "errors are at the fields")
    wrong = """
    return [...document.querySelectorAll("main .field")].filter((one) => one.querySelector(".wrong").textContent)
      .map((one) => [one.querySelector("[aria-invalid=true]").name, one.querySelector(".wrong").textContent]);
    """
    assert dict(browser.run(wrong)).keys() == {"lease", "backoff.first"}
    assert dict(browser.run(wrong))["lease"] == "13h is not within 1s to 12h"
    assert browser.focused() == "lease"
    browser.run(fill, {"lease": "1m", "backoff.first": "1s"})
    assert browser.run(wrong) == []
    console.act("Change…", "Change")
    assert api("GET", f"/topics/{name}")["settings"]["ttl"] is None
    assert [line for line in browser.logged() if "400" not in line] == []


VALUE = 'return document.querySelector(`main [name="${arguments[0]}"]`)?.value'


def test_cluster_view_shows_nodes_and_refusals(console: Console) -> None:
    browser = console.browser
    console.go("#/cluster")
    browser.reads("1 of 1", ".tile")
    browser.reads("Nothing moves.")
    browser.reads("Drift")
    browser.reads("look aheads")
    browser.click("Drain…", ".node")
    browser.reads("replicas move", "dialog")
    console.note_command("dialog")
    browser.click("Drain", "dialog")
    browser.until(lambda: browser.text("dialog .wrong"), "it is said why not")
    assert [line for line in browser.logged() if "400" not in line] == []
    browser.click("Cancel", "dialog")
    browser.click("Remove…", ".node")
    browser.reads("Type node1 to confirm", "dialog")
    console.note_command("dialog")
    browser.click("Cancel", "dialog")
    said = console.act("Accept the wall clock…", "Accept")
    assert "1 node." in said


def test_lateness_view_shows_the_objective(console: Console) -> None:
    browser, api = console.browser, console.api
    promised = api("GET", "/slo")
    console.go("#/lateness")
    browser.reads("Budget left", ".tile")
    browser.reads(f"{promised['target'] * 100:g} %", ".tile")
    browser.reads("node1", "tbody")
    assert console.note_command("main") == "sandctl slo"


def test_a_statement_of_sql_is_answered(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "asked")
    for number in range(3):
        api("POST", f"/topics/{name}", {"text": HOSTILE, "key": f"k{number}", "deliver_at": FAR})
    console.go("#/sql")
    browser.click("Run", "form")
    browser.reads("asked", "tbody")
    assert "FROM topics" in console.note_command("main")
    statement = "SELECT `key`, text, NULL AS nothing FROM messages WHERE topic = 'asked' AND deliver_at > NOW()"
    browser.fill("statement", statement, "form")
    browser.fill("limit", "2", "form")
    line = console.note_command("main")
    assert "--limit 2" in line and "SELECT `key`" in line
    browser.click("Run", "form")
    browser.reads("2 rows, and there are more", "main")
    assert HOSTILE in browser.text("tbody") and "NULL" in browser.text("tbody")
    browser.fill("statement", "DELETE FROM messages", "form")
    browser.click("Run", "form")
    browser.reads("The request failed", "main")
    assert [line for line in browser.logged() if "400" not in line] == []


def test_identities_are_shown_without_secrets_and_ended(console: Console) -> None:
    browser, api = console.browser, console.api
    given = {"name": "ledger", "grants": ["writer:ledger.*", "read:orders"], "expires_in": "20d", "note": HOSTILE}
    secret = api("POST", "/tokens", given)["token"]
    api("POST", "/identities", {"principal": "cert:till/7", "grants": ["reader"]})
    console.go("#/access")
    browser.reads("token:ledger", "tbody")
    for text in ("writer:ledger.*", "read:orders", HOSTILE, "cert:till/7", "never", "built in"):
        assert text in browser.text("tbody")
    assert secret not in browser.run("return document.documentElement.outerHTML")
    said = console.act("Revoke…", "Revoke", typed="token:ledger")
    assert "1 identity with 2 rights and roles: writer:ledger.*, read:orders." in said
    assert console.commands[-1] == "sandctl token revoke ledger --yes"
    assert api("GET", "/tokens")["identities"] == []
    console.act("Delete…", "Delete", typed="cert:till/7")
    browser.reads("There is no identity yet.", "tbody")
    assert api("GET", "/identities")["identities"] == []


def test_audit_log_is_filtered_and_goes_on(console: Console) -> None:
    browser, api = console.browser, console.api
    topic(api, "audited.a")
    topic(api, "audited.b")
    for _ in range(60):
        api("PATCH", "/topics/audited.b", {"settings": {"lease": "1m"}})
    console.go("#/audit")
    browser.reads("topic_update", "tbody")
    assert "audited.a" not in browser.text("tbody"), "the newest first, and in pages"
    console.note_command("main")
    browser.fill("topic", "audited.a", "main")
    browser.reads("1 of the newest")
    assert browser.text("tbody").count("topic_create") == 1 and "anonymous" in browser.text("tbody")
    api("DELETE", "/topics/audited.a")
    browser.until(lambda: newer(browser, "topic_delete"), "what is written later is shown")
    browser.fill("principal", "token:", "main")
    browser.reads("No line matches.", "tbody")
    browser.fill("principal", "anon", "main")
    browser.fill("request", "delete", "main")
    browser.fill("result", "failed", "main")
    browser.reads("No line matches.", "tbody")
    browser.fill("result", "ok", "main")
    browser.reads("topic_delete", "tbody")
    browser.fill("request", "update", "main")
    browser.fill("topic", "audited.b", "main")
    browser.click("audited.b", "tbody")
    browser.reads("audited.b", "h1")


def newer(browser: Browser, text: str) -> bool:
    """Request newer lines, and return whether the table has the text."""
    browser.click("Newer lines", "main")
    return text in browser.text("tbody")


def test_backups_are_made_listed_and_verified(console: Console) -> None:
    browser, api = console.browser, console.api
    topic(api, "saved")
    console.go("#/backups")
    browser.reads("There is no backup yet.", "tbody")
    console.act("Start a backup…", "Start", topics="saved")
    assert console.commands[-1] == "sandctl backup create URL --topic saved"
    browser.until(lambda: refreshed(browser, "Verify…"), "it is finished, and listed")
    (made,) = api("GET", "/backups")["backups"]
    assert made["backup_id"] in browser.text("tbody")
    assert "\u2013" in browser.text("tbody"), "the backup has no increments"
    said = console.act("Verify…", "Verify")
    assert "1 topic, 0 increments." in said
    browser.reads("is intact", "#said")


def test_hostile_values_are_text(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "hostile")
    evil = {"text": HOSTILE, "headers": {HOSTILE: HOSTILE, "way": "\u202etxt.exe"}, "deliver_at": FAR}
    told = api("POST", f"/topics/{name}", {**evil, "unique_key": HOSTILE})
    api("POST", f"/topics/{name}", {**evil, "key": "javascript:alert(1)"})
    surrogates = api("POST", f"/topics/{name}", {"value": "Iu2ggCBhbG9uZSI=", "deliver_at": FAR})
    large = api("POST", f"/topics/{name}", {"text": "x" * (1 << 20), "deliver_at": FAR})
    console.go(f"#/topics/{name}/messages")
    browser.reads(HOSTILE[:30], "tbody")
    for found, text in ((told, HOSTILE), (surrogates, "22 ed a0 80"), (large, "xxxxxxxxxxxxxxxx")):
        browser.click(found["id"], "tbody")
        browser.reads(found["id"], "h2")
        browser.reads(text, "pre.value")
    browser.reads("1 MiB, cut")
    assert int(browser.run("return document.querySelector('pre.value').textContent.length")) == 64 * 1024
    browser.click("Show all", "main")
    length = "return document.querySelector('pre.value').textContent.length"
    browser.until(lambda: browser.run(length) == 1 << 20, "all of it is shown")
    browser.click(told["id"], "tbody")
    browser.reads("\\u202etxt.exe", "section table")
    script = (
        "return [document.title, document.querySelectorAll('main script, main img, main [href^=javascript]').length]"
    )
    title, injected = browser.run(script)
    assert "had" not in title and injected == 0


def test_console_works_with_the_keyboard(console: Console) -> None:
    browser, api = console.browser, console.api
    topic(api, "bykeys")
    console.go("")
    browser.reads("bykeys", "tbody")
    browser.run("document.activeElement.blur()")
    browser.keys("/")
    assert browser.focused() == "" or browser.run("return document.activeElement.type") == "search"
    browser.keys("bykeys")
    browser.tab_to("bykeys")
    browser.keys(Keys.ENTER)
    browser.reads("bykeys", "h1")
    browser.tab_to("Produce…")
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    browser.keys(Keys.ENTER)
    browser.one("dialog[open]")
    assert browser.focused() == "value"
    browser.keys("by the keyboard")
    browser.tab_to("Produce")
    browser.keys(Keys.ENTER)
    browser.until(lambda: api("GET", "/topics/bykeys/messages")["messages"], "nothing was produced")
    browser.until(lambda: "Stored as" in browser.text("#said"), "it is said that it was stored")
    browser.click("Produce…")
    browser.one("dialog[open]")
    browser.keys(Keys.ESCAPE)
    browser.until(lambda: not browser.driver.find_elements("css selector", "dialog"), "Escape closes it")
    browser.run("document.activeElement.blur()")
    browser.keys("g", "c")
    browser.reads("Cluster", "h1")


VIEWS = (
    "",
    "#/groups",
    "#/lateness",
    "#/sql",
    "#/cluster",
    "#/access",
    "#/audit",
    "#/backups",
    *(f"#/topics/looked.at/{tab}" for tab in ("timeline", "messages", "settings")),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_views_fit_a_phone_have_labels_and_contrast(console: Console, scheme: str) -> None:
    browser = console.browser
    if console.api.status("GET", "/topics/looked.at") == 404:
        topic(console.api, "looked.at")
    browser.scheme(scheme)
    for view in VIEWS:
        console.go(view)
        browser.until(lambda: not browser.driver.find_elements("css selector", "[aria-busy]"), "it loads")
        for width, height in ((1280, 900), (390, 844)):
            browser.size(width, height)
            wide = browser.run("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (view, width, wide)
            assert browser.run(LABELS) == [], (view, width)
            assert browser.run(CONTRAST) == [], (view, width)
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 245, 242)", "dark": "rgb(20, 22, 26)"}[scheme]


def test_pushed_group_is_not_said_to_lack_consumers(console: Console) -> None:
    browser, api = console.browser, console.api
    topic(api, "hooked")
    api("POST", "/topics/hooked", {"messages": [{"text": "x"}, {"text": "y"}]})
    (held,) = api.lease("hooked", "hook")
    settled = {"lease_token": held["lease_token"], "offset": held["offset"]}
    api("POST", "/topics/hooked/groups/hook/ack", settled)
    api("PUT", "/topics/hooked/groups/hook/push", {"url": "https://receiver.invalid/", "secrets": [new_push_secret()]})
    console.go("#/topics/hooked/groups")
    browser.reads("receiver fails", "tbody")
    assert "no consumer" not in browser.text("main")
    console.go("")
    browser.reads("hook of hooked: its receiver fails every request: ", ".findings")
    browser.reads("sandctl doctor", "section .command")


def test_times_are_shown_in_utc_or_in_the_zone_of_the_browser(console: Console) -> None:
    browser = console.browser
    if console.api.status("GET", "/topics/zoned") == 404:
        topic(console.api, "zoned")
    day = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)).date().isoformat()
    console.api("POST", "/topics/zoned", {"text": "x", "deliver_at": f"{day}T12:00:00Z"})
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    try:
        browser.open(f"{console.api.base}/#/topics/zoned/messages")
        browser.reads(f"{day} 17:30:00", "main")
        browser.click("UTC+05:30", "#top")
        browser.reads(f"{day} 12:00:00", "main")
        headers = "return [...document.querySelectorAll('main thead th:not([hidden])')].map((one) => one.innerText)"
        shown = ["Id", "State", "Delivered at", "Value", "Size", "Partition"]
        assert browser.run(headers) == shown, "no column is empty"
        browser.click("UTC", "#top")
        browser.reads(f"{day} 17:30:00", "main")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_page_without_a_connection_says_as_of_when_and_is_dimmed(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    node = NodeProcess(tmp_path, SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}")
    node.start()
    api = Api(f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: api.status("GET", "/readyz") == 200)
        Console(browser, api).go("")
        browser.reads("live", ".state")
    finally:
        node.kill()
    browser.reads("no connection, as of 20", ".state")
    browser.until(
        lambda: float(browser.run("return getComputedStyle(document.querySelector('.tiles')).opacity")) < 1, "dim"
    )
    browser.leave()


def test_rows_on_phone_are_cards(console: Console) -> None:
    browser = console.browser
    if console.api.status("GET", "/topics/looked.at") == 404:
        topic(console.api, "looked.at")
    display = "return getComputedStyle(document.querySelector('main tbody tr')).display"
    browser.size(390, 844)
    console.go("#/")
    browser.until(lambda: browser.run("return !!document.querySelector('main tbody tr td')"), "rows")
    assert browser.run(display) == "block"
    label = "return getComputedStyle(document.querySelector('main tbody td:not(.wide)'), '::before').content"
    assert len(browser.run(label)) > 4
    browser.size(1280, 900)
    assert browser.run(display) == "table-row"
    assert browser.run("return getComputedStyle(document.querySelector('main tbody td')).overflowWrap") == "break-word"


def test_console_with_token_offers_permitted_actions(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    environ = {"SANDQ_LISTEN__HTTP": f"127.0.0.1:{port}", "SANDQ_SECURITY__AUTHENTICATION": "require"}
    node = NodeProcess(tmp_path, **environ)
    node.start(wait=False)
    try:
        file = node.data_dir / "admin.token"
        wait_until(file.is_file)
        api = Api(f"http://127.0.0.1:{port}", file.read_text().strip())
        wait_until(lambda: api.status("GET", "/whoami") == 200)
        for name in ("open.door", "shut.door"):
            api("POST", "/topics", {"name": name})
        reader = api("POST", "/tokens", {"name": "reader", "grants": ["read:open.*"]})["token"]
        browser.size(1280, 900)
        browser.open(f"{api.base}/")
        browser.reads("This cluster requires a token.")
        browser.fill("token", "sandq_wrong")
        browser.click("Sign in")
        browser.reads("This token is not valid.")
        browser.fill("token", reader)
        browser.click("Sign in")
        browser.reads("open.door", "tbody")
        assert "shut.door" not in browser.text()
        assert reader not in browser.driver.current_url
        browser.click("open.door", "tbody")
        browser.click("Delete…", ".head")
        browser.reads("this needs the right manage on open.door", "#said")
        assert "Access" not in browser.text("nav") and "Backups" not in browser.text("nav")
        for place, right in (("access", "security"), ("audit", "security"), ("backups", "cluster")):
            browser.run("location.hash = arguments[0]", f"#/{place}")
            browser.reads(f"You need the right {right}", "h2")
        browser.run("location.hash = '#/topics/open.door'")
        browser.reads("open.door", "h1")
        assert not browser.driver.find_elements("css selector", "dialog")
        writer = api("POST", "/tokens", {"name": "writer", "grants": ["read:open.*", "produce:open.*"]})["token"]
        browser.click("Sign out")
        browser.reads("This cluster requires a token.")
        browser.fill("token", writer)
        browser.click("Sign in")
        browser.click("Produce…", ".head")
        browser.fill("value", "a secret", "dialog")
        api("DELETE", "/tokens/writer")
        browser.reads("This cluster requires a token.")
        assert "a secret" not in browser.text() and not browser.driver.find_elements("css selector", "dialog[open]")
        assert browser.focused() == "token"
        # The browser logs each reply with status 401, and nothing else.
        assert [line for line in browser.logged() if "401" not in line] == []
    finally:
        browser.leave()
        node.kill()


SHELL = r"""sandctl() { printf '%s\0' "$@"; }; eval "$1" """


@pytest.mark.parametrize(
    "word",
    [
        *("it's", "$(reboot)", "`reboot`", "a\nreboot\n", "\t\r x", "!! it's\n!!", "back\\slash", "\\'\n; reboot #"),
        *(
            "\x1b[201~;reboot",
            "\u009b201~",
            "\u202ehidden\u2066",
            "zero\u200bwidth",
            "\ufeff",
            "\x01f",
            "caf\u00e9 \U0001f980",
        ),
    ],
)
def test_command_arguments_are_unchanged_in_shell(browser: Browser, api: Api, word: str) -> None:
    line = module(browser, api, "commands", "found.sandctl('kv get', ['t', given], {key: given})", word)
    assert line.isprintable() and line.startswith("sandctl kv get t ")
    assert shell_arguments(line) == [b"kv", b"get", b"t", word.encode(), b"--key", word.encode()]


def module(browser: Browser, api: Api, name: str, expression: str, given: Any = None) -> Any:
    """Return the value of an expression, in which `found` is a module of the console."""
    if not str(browser.driver.current_url).startswith(api.base):
        browser.open(f"{api.base}/")
    script = f"""
    const [given, done] = arguments;
    import("/console/{name}.js").then((found) => done({expression})).catch((error) => done(`${{error}}`));
    """
    return browser.driver.execute_async_script(script, given)


def test_element_shows_the_newest_load_and_nothing_old_meanwhile(browser: Browser, api: Api) -> None:
    """So a button never acts on a row that was clicked before."""
    script = """(async () => {
      const element = document.createElement("div");
      element.append("old");
      let answer;
      const question = new Promise((resolve) => { answer = resolve; });
      const earlier = found.load(element, () => question, (text) => text, { fresh: true });
      const meanwhile = element.textContent;
      const later = found.load(element, async () => "second", (text) => text);
      await later;
      answer("first");
      await earlier;
      return [meanwhile, element.textContent, element.getAttribute("aria-busy")];
    })()"""
    assert module(browser, api, "ui", script) == ["Loading…", "second", None]


def test_pages_that_a_finding_names_are_links_to_the_site(browser: Browser, api: Api) -> None:
    parts = "found.withPages(given).map((part) => (part.href ? [part.getAttribute('href'), part.textContent] : part))"
    situations = [one.todo for one in SITUATIONS.values() if "docs/" in one.todo]
    assert len(situations) >= 4
    for todo in situations:
        before, (href, named), after = module(browser, api, "ui", parts, todo)
        assert before + named + after == todo and href == f"help/{named[5:-3]}/"
        assert (ROOT / named).exists()
    assert module(browser, api, "ui", parts, "<b>sandctl doctor</b>") == ["<b>sandctl doctor</b>"]


def shell_arguments(line: str) -> list[bytes]:
    """Return the arguments of sandctl, as bash parses the line."""
    environ = {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    found = subprocess.run(["bash", "-c", SHELL, "bash", line], env=environ, stdout=subprocess.PIPE, check=True)
    return found.stdout.split(b"\0")[:-1]


def test_command_bytes_are_unchanged_in_shell_or_omitted(browser: Browser, api: Api) -> None:
    script = "found.sandctl('kv delete', ['t', Uint8Array.from(given)])"
    data = bytes(range(1, 256))
    line = module(browser, api, "commands", script, [*data])
    assert line.isascii() and shell_arguments(line) == [b"kv", b"delete", b"t", data]
    # A shell ends an argument at a zero byte, so the command would name another key.
    assert shell_arguments(module(browser, api, "commands", script, [65, 0, 66])) == []
    assert shell_arguments(module(browser, api, "commands", "found.sandctl('kv delete', ['t', given])", "a\0b")) == []


def test_json_and_numbers_are_shown_as_they_are(browser: Browser, api: Api) -> None:
    text = '{"id": 12345678901234567890, "id":1.50, "a" :[ ], "b":{}, "c":[1,{"d":"x: [\\"y\\"], "}]}'
    assert module(browser, api, "format", "found.respaced(given)", text) == (
        '{"id":12345678901234567890,"id":1.50,"a":[],"b":{},"c":[1,{"d":"x: [\\"y\\"], "}]}'
    )
    shown = module(browser, api, "format", "found.pretty(given)", text)
    assert shown.startswith(
        '{\n  "id": 12345678901234567890,\n  "id": 1.50,\n  "a": [],\n  "b": {},\n  "c": [\n    1,\n    {\n'
    )
    assert module(browser, api, "format", "found.pretty('{]')") is None
    numbers = [0, 7, 999, 1234, 12_345, 1_250_000, 999_950]
    told = module(browser, api, "format", "given.map((one) => found.short(one))", numbers)
    assert told == ["0", "7", "999", "1,234", "12.3 k", "1.3 M", "1,000 k"]
    told = module(browser, api, "format", "given.map((one) => found.count(one))", [1, 1000, 1_234_567, -4321])
    assert told == ["1", "1,000", "1,234,567", "-4,321"]
    assert module(browser, api, "format", "given.map(found.bytes)", [1023, 1536, 1 << 40]) == [
        "1,023 B",
        "1.5 KiB",
        "1 TiB",
    ]


def test_ages_are_by_the_clock_of_the_cluster(browser: Browser, api: Api) -> None:
    script = "(found.setNow('2100-01-01T00:00:00Z'), found.ago('2099-12-31T23:50:00Z'))"
    assert module(browser, api, "format", script) == "10 m ago"
    browser.open(f"{api.base}/")  # a new page, which has the right time again


def test_names_that_a_browser_takes_from_an_address_are_not_asked_for(browser: Browser, api: Api) -> None:
    for name in ("", ".", ".."):
        assert "a browser cannot send" in module(
            browser, api, "api", "found.path('topics', 't', 'messages', given)", name
        )


def test_change_dialog_keeps_unchanged_fields(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "kept")
    headers = {"by": "ada", "raw": {"base64": "/wA="}, "lines": "a\nb=c"}
    sent = {"text": "one\r\ntwo", "headers": headers, "deliver_at": FAR}
    told = api("POST", f"/topics/{name}", sent)
    console.go(f"#/topics/{name}/messages")
    browser.click(told["id"], "tbody")
    browser.reads("two", "pre")
    said = console.act("Change…", "Change it", headers="by=desk")
    assert "raw, lines" in said and "--value" not in said
    message = api("GET", f"/topics/{name}/messages/{told['id']}")
    assert (message["text"], message["headers"]) == (sent["text"], {**headers, "by": "desk"})
    browser.reads("desk", "section table")
    console.act("Change…", "Change it", value='{"id": 12345678901234567890}', kind="json")
    message = api("GET", f"/topics/{name}/messages/{told['id']}")
    assert (message["text"], message["headers"]) == ('{"id":12345678901234567890}', {**headers, "by": "desk"})


def test_keys_of_similar_text_are_distinct(console: Console) -> None:
    browser, api = console.browser, console.api
    name = topic(api, "alike", kind="compacted")
    api("PUT", f"/topics/{name}/keys/_wE?encoding=base64", {"text": "of bytes", "headers": {"by": "ada"}})
    api("PUT", f"/topics/{name}/keys/base64:%2FwE=", {"text": "of text"})
    for number in range(100):
        api("PUT", f"/topics/{name}/keys/_w{'ABCDEFGH'[number % 8]}{number:02}A?encoding=base64", {"text": "x"})
    console.go(f"#/topics/{name}/keys")
    browser.click("More", "main")  # the next page begins at a key that is no text
    alike = "return [...document.querySelectorAll('tbody .mono')].filter((one) => one.textContent === 'base64:/wE=')"
    browser.until(lambda: len(browser.run(alike)) == 2, "both are listed")
    values = set()
    for place in (0, 1):
        browser.run(f"{alike}[{place}].click()")
        browser.until(lambda: browser.text("pre") not in ("", *values), "the other one is shown")
        values.add(browser.text("pre"))
        if browser.text("pre") == "of bytes":
            assert shell_arguments(browser.text("section .command")) == [b"kv", b"get", b"alike", b"\xff\x01"]
            console.act("Change…", "Put", value="other bytes")
            told = api("GET", f"/topics/{name}/keys/_wE?encoding=base64")
            assert (told["text"], told["headers"]) == ("other bytes", {"by": "ada"})
            browser.until(lambda: not browser.text("pre"), "it is closed")
            browser.click("More", "main")
            browser.until(lambda: len(browser.run(alike)) == 2, "both are listed")
    assert values == {"of bytes", "of text"}


def test_commands_are_quoted_for_shell(browser: Browser, api: Api) -> None:
    browser.open(f"{api.base}/")
    script = """
    const [words, places, options, done] = arguments;
    import("/console/commands.js").then((found) => done(found.sandctl(words, places, options)));
    """
    for places, options, line in (
        (["orders", "it's"], {"key": "a b"}, "sandctl produce orders 'it'\\''s' --key 'a b'"),
        (["orders", "-x"], {}, "sandctl produce -- orders -x"),
        (["orders", ""], {"header": ["a=1", "b=2"]}, "sandctl produce orders '' --header a=1 --header b=2"),
        (["orders", "$(reboot)"], {}, "sandctl produce orders '$(reboot)'"),
    ):
        assert browser.driver.execute_async_script(script, "produce", places, options) == line
        check_command(line)


def test_unknown_view_shows_not_found(console: Console) -> None:
    for place in ("#/nowhere", "#/topics/%ff"):
        console.go(place)
        console.browser.reads("Page not found", "h1")
    console.go("#/topics/none/settings")  # this view sends one request; two replies could arrive one after the other
    console.browser.reads("there is no topic 'none'", ".failure")
    console.browser.until(lambda: console.browser.run("return document.querySelector('.head .acts').hidden"), "no acts")
    assert [line for line in console.browser.logged() if "404" not in line] == []


def test_documented_commands_and_images_exist() -> None:
    page = (ROOT / "docs" / "console.md").read_text()
    for line in re.findall(r"^    (sandctl .+)$", page, re.M):
        check_command(line)
    pictures = re.findall(r"\(images/([a-z-]+\.png)\)", page)
    assert len(pictures) >= 3
    for name in pictures:
        assert (ROOT / "docs" / "images" / name).stat().st_size < 150_000
