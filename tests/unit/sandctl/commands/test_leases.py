"""Tests of sandctl lease with a client that records its calls, and of `take` with a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from click.testing import Result

from sandq.model import offsets
from tests.support.client.fake_server import FakeServer
from tests.support.sandctl.fake_client import Ctl, FakeClient, stored, text
from tests.unit.sandctl.commands.test_stored import BIOGRAPHY, ID

LEASE = f"7.0.{2**60}"
OFFSET = text(5000, 3)
"""The offset of the message. Its id differs, because it was moved."""


@pytest.fixture
def held(client: FakeClient) -> FakeClient:
    """A client with a message that worker-2 holds for group billing."""
    client.rows = [stored(1, unique_key=b"u", state="leased")]
    client.biography = {**BIOGRAPHY, "offset": OFFSET}
    return client


@pytest.mark.parametrize(
    ("command", "more", "wanted", "how"),
    [
        ("ack", [], "acked", {}),
        ("nack", [], "nacked", {"count": True}),
        (
            "nack",
            ["--in", "10m", "--error", "bank is down", "--no-count"],
            "nacked",
            {"delay": timedelta(minutes=10), "error": "bank is down", "count": False},
        ),
        ("dead", ["--error", "410 gone"], "dead", {"error": "410 gone"}),
        ("give-back", [], "given_back", {}),
        (
            "give-back",
            ["--in", "10s", "--error", "busy"],
            "given_back",
            {"delay": timedelta(seconds=10), "error": "busy"},
        ),
        ("extend", ["--for", "5m"], "extended", {"lease": timedelta(minutes=5)}),
    ],
)
def test_leased_message_is_settled_by_its_id(
    offline: Ctl, held: FakeClient, command: str, more: list[str], wanted: str, how: dict[str, Any]
) -> None:
    name = f"leases.{command.replace('-', '_')}"
    args = ("lease", command, "t", "-g", "billing", *more)
    result = offline(*args, ID)
    assert (result.exit_code, result.stdout) == (0, f"{wanted.replace('_', ' ')} {ID}\n"), result.output
    expected = {"topic": "t", "group": "billing", "item": (LEASE, OFFSET), **how}
    assert held.asked(name) == [expected]
    held.lost_tokens = {LEASE}
    result = offline(*args, "--unique-key", "u", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (1, [{"unique_key": "u", "outcome": "lost"}])
    assert held.asked(name) == [expected] * 2
    # All messages of a lease, without a look-up.
    looks = len(held.asked("why"))
    result = offline(*args, "--lease-token", "7.1.65536", "--lease-token", LEASE)
    assert result.exit_code == 1 and result.stdout == f"{wanted.replace('_', ' ')} lease 7.1.65536\n"
    assert result.stderr == f"lease {LEASE}: the lease was no longer held; nothing was done\n"
    assert [call["item"] for call in held.asked(name)[2:]] == [("7.1.65536", None), (LEASE, None)]
    assert len(held.asked("why")) == looks


def test_message_that_the_group_does_not_hold_is_unchanged(offline: Ctl, held: FakeClient) -> None:
    result = offline("lease", "nack", "t", "-g", "audit", ID)
    assert (result.exit_code, result.stderr) == (1, f"{ID}: not leased, it is waiting\n")
    result = offline("lease", "dead", "t", "-g", "audit", ID, "-o", "jsonl")
    assert json.loads(result.stdout) == {"id": ID, "outcome": "not_leased", "state": "waiting"}
    other = text(1000, 9)
    assert offline("lease", "ack", "t", "-g", "audit", other).stderr == f"{other}: not found\n"
    result = offline("lease", "ack", "t", "-g", "billling", ID)
    assert result.exit_code == 1 and "has no group 'billling'" in result.stderr
    assert not [call for call in held.calls if call.name.startswith("leases")]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nack"], "name the messages in one way: ID..., --unique-key K, or --lease-token TOKEN"),
        (["nack", "--lease-token", LEASE, "--tenant", "a"], "needs --unique-key"),
        (["nack", "--lease-token", LEASE, "--key", "a"], "--key needs --unique-key"),
        (["nack", ID, "--unique-key", "u"], "in one way"),
        (["nack", ID, "--lease-token", LEASE], "in one way"),
        (["nack", "--lease-token", "7.0"], "--lease-token: '7.0' is not a lease"),
        (["dead", ID, "--tenant", "a"], "says whose unique key"),
        (["extend", ID], "--for"),
        (["nack", ID, "--in", "5x"], "5x"),
    ],
)
def test_wrong_usage(offline: Ctl, client: FakeClient, args: list[str], words: str) -> None:
    command, *more = args
    result = offline("lease", command, "t", "-g", "g", *more)
    assert result.exit_code == 2 and words in " ".join(result.stderr.split()), result.stderr
    assert not client.calls


def test_take(ctl: Callable[..., Result], server: FakeServer) -> None:
    assert ctl("lease", "take", "t", "-g", "g").stderr == "none\n"
    assert ctl("produce", "t", "call Ada").exit_code == 0
    result = ctl("lease", "take", "t", "-g", "g", "--max", "5", "--lease", "1m", "-o", "jsonl")
    row = json.loads(result.stdout)
    assert (row["text"], row["attempt"]) == ("call Ada", 1) and offsets.parse_lease(row["lease_token"]).partition == 0
    assert {"lease_until", "offset", "id"} <= set(row)
