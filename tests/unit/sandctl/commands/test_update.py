"""Tests of `sandctl message update`, and of the conflicts of unique keys that `produce` shows."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.sandctl.fake_client import Ctl, FakeClient, stored
from tests.unit.sandctl.commands.test_stored import ID, OTHER


def test_update_named_messages(ctl: Ctl, client: FakeClient, tmp_path: Path) -> None:
    client.rows = [stored(1), stored(2, state="leased"), stored(3, unique_key=b"u")]
    whole = tmp_path / "value"
    whole.write_bytes(b"\xff from a file")
    assert ctl("message", "update", "t", ID, "--value", "new").stdout == f"updated {ID}\n"
    assert ctl("message", "update", "t", "--unique-key", "u", "--file", str(whole), "--header", "a=1").exit_code == 0
    assert ctl("message", "update", "t", ID, "--no-headers", "--in", "1m", "--priority", "3").exit_code == 0
    assert client.asked("update") == [
        {"id": ID, "value": b"new"},
        {"unique_key": b"u", "value": b"\xff from a file", "headers": {"a": "1"}},
        {"id": ID, "headers": {}, "delay": timedelta(minutes=1), "priority": 3},
    ]
    result = ctl("message", "update", "t", ID, OTHER, "--value", "new", "-o", "json")
    first, second = json.loads(result.stdout)
    assert (first["id"], first["outcome"], "offset" in first) == (ID, "updated", True)
    assert second == {"id": OTHER, "outcome": "too_late", "state": "leased"}
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--value", "x"], "name the messages"),
        ([ID, "--unique-key", "u", "--value", "x"], "either"),
        ([ID], "say what to change"),
        ([ID, "--in", "5m"], "say what to change"),
        ([ID, "--value", "x", "--file", "y"], "cannot be used together"),
        ([ID, "--header", "a=1", "--no-headers"], "cannot be used together"),
        ([ID, "--value", "x", "--at", "+1h", "--in", "1h"], "cannot be used together"),
        ([ID, "--header", "a"], "NAME=VALUE is expected"),
        ([ID, "--value", "x", "--tenant", "a"], "says whose unique key"),
    ],
)
def test_wrong_usage(ctl: Ctl, client: FakeClient, args: list[str], words: str) -> None:
    result = ctl("message", "update", "t", *args)
    assert result.exit_code == 2 and words in " ".join(result.stderr.split()), result.stderr
    assert not client.calls
