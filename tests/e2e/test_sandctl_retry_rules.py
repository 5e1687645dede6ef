"""`sandctl produce` gives messages their own number of attempts and back-off; other commands show them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Ctl

HOURLY = {"kind": "fixed", "first": "1h", "factor": 2, "cap": "1h", "jitter_percent": 20}


@pytest.fixture(scope="module")
def ctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctl]:
    node = NodeProcess(tmp_path_factory.mktemp("node"))
    node.start()
    yield Ctl(node)
    node.close()


def test_produce_gives_messages_their_own_rules(ctl: Ctl) -> None:
    ctl("topic create mails")
    ctl("produce mails invoice --max-attempts 20 --backoff fixed --backoff-first 1h --backoff-cap 1h")
    lines = [{"text": "a"}, {"text": "b", "max_attempts": "none", "backoff": HOURLY}]
    ctl("produce mails --jsonl --max-attempts 2", stdin="\n".join(map(json.dumps, lines)))
    found = [(one.get("max_attempts"), one.get("backoff")) for one in ctl.json("message list mails")]
    assert found == [(20, HOURLY), (2, None), ("none", HOURLY)]
    first = ctl.json("message list mails")[0]["id"]
    assert ctl.json("message get mails", first)["max_attempts"] == 20
    why = ctl("message why mails", first).out
    assert "attempts   20 at most" in why
    assert "back-off   kind fixed, first 1h, factor 2, cap 1h, jitter_percent 20" in why


def test_stored_messages_are_produced_again_with_their_rules(ctl: Ctl) -> None:
    ctl("topic create copy")
    ctl("topic create source")
    ctl("produce source m --max-attempts 7")
    shown = ctl("message list source --values -o jsonl").out
    ctl("produce copy --jsonl", stdin=shown)
    assert [one["max_attempts"] for one in ctl.json("message list copy")] == [7]


def test_messages_of_a_schedule(ctl: Ctl) -> None:
    ctl("topic create reports")
    ctl("schedule create reports daily m --every 1h --ttl 1d --max-attempts 7 --backoff fixed --backoff-first 90s")
    shown = ctl.json("schedule show reports daily")
    assert (shown["max_attempts"], shown["backoff"]["first"], shown["ttl"]) == (7, "1m30s", "1d")
    ctl("schedule update reports daily --max-attempts none --reset backoff")
    shown = ctl.json("schedule show reports daily")
    assert (shown["max_attempts"], shown.get("backoff"), shown["ttl"]) == ("none", None, "1d")


def test_wrong_values_are_refused(ctl: Ctl) -> None:
    ctl("topic create wrong")
    assert "--max-attempts" in ctl("produce wrong m --max-attempts many", code=2).err
    refused = ctl("produce wrong m --backoff fixed --backoff-first 1h", code=2).err
    assert "backoff.first: 1h is longer than backoff.cap (10m), and no message waits longer: raise the cap" in refused
