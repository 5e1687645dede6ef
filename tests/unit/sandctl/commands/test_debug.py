"""Tests that `sandctl debug bundle` contains all available data, even if little is available."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sandctl.commands.debug import FAILURES_MOST
from sandq.client import TopicRecord
from sandq.model.errors import Unavailable
from tests.support.sandctl.fake_client import Ctl, FakeClient

NO_LEADER = "there is no leader"


class Troubled:
    """The admin part of a client of a faulty cluster."""

    def __init__(self, nodes: dict[str, bool], topics: int | None, *, has_groups: bool = True) -> None:
        """`topics`: None if the list of topics cannot be read."""
        self._nodes = nodes
        self._topics = topics
        self._has_groups = has_groups
        self.asked: list[str] = []

    async def cluster(self, node: str | None = None) -> dict[str, Any]:
        return {"node": "n1", "nodes": [{"node": name, "up": up} for name, up in self._nodes.items()]}

    async def dump(self, node: str | None) -> dict[str, Any]:
        return {"node": node}

    async def clock(self) -> dict[str, Any]:
        raise Unavailable(NO_LEADER)

    async def list_topics(self) -> list[TopicRecord]:
        if self._topics is None:
            raise Unavailable(NO_LEADER)
        return [TopicRecord(f"t{number}", number, "log", [], 1, 1, {}) for number in range(self._topics)]

    async def stats(self, topic: str) -> list[dict[str, Any]]:
        return []

    async def groups(self, topic: str) -> list[dict[str, Any]]:
        self.asked.append(topic)
        if not self._has_groups:
            raise Unavailable(NO_LEADER)
        return []


def bundled(ctl: Ctl, file: Path) -> dict[str, Any]:
    """Make a debug bundle, and return its files as JSON."""
    result = ctl("debug", "bundle", str(file))
    assert result.exit_code == 0, result.output
    with tarfile.open(file) as archive:
        found = {name: archive.extractfile(name) for name in archive.getnames()}
        return {
            name.removeprefix("sandq-debug/").removesuffix(".json"): json.load(part)
            for name, part in found.items()
            if part
        }


@pytest.mark.parametrize(
    ("nodes", "dumps"),
    [
        ({}, {"nodes/n1": {"node": None}}),
        ({"n1": True, "n2": False, "n3": True}, {"nodes/n1": {"node": "n1"}, "nodes/n3": {"node": "n3"}}),
    ],
)
def test_bundle_of_a_failing_cluster_names_missing_parts(
    offline: Ctl, client: FakeClient, tmp_path: Path, nodes: dict[str, bool], dumps: dict[str, Any]
) -> None:
    client.admin = Troubled(nodes, None)  # type: ignore[assignment]
    file = tmp_path / "made.tar.gz"
    found = bundled(offline, file)
    assert {name: part for name, part in found.items() if name in dumps} == dumps
    assert found["cluster"]["node"] == "n1" and found["missing"]["topics"] == found["missing"]["clock"] == NO_LEADER
    assert found["missing"].get("nodes/n2") == ("it cannot be reached" if "n2" in nodes else None)
    assert file.stat().st_mode & 0o777 == 0o600
    again = offline("debug", "bundle", str(file))
    assert again.exit_code == 1 and "is there already" in again.output


def test_bundle_stops_after_some_failed_topics(offline: Ctl, client: FakeClient, tmp_path: Path) -> None:
    client.admin = admin = Troubled({"n1": True}, 1000, has_groups=False)  # type: ignore[assignment]
    found = bundled(offline, tmp_path / "made.tar.gz")
    assert len(found["topics"]) == 1000 and len(admin.asked) == FAILURES_MOST
    assert "groups of more topics" in found["missing"]
    client.admin = Troubled({"n1": True}, 5)  # type: ignore[assignment]
    found = bundled(offline, tmp_path / "whole.tar.gz")
    assert [name for name in found if name.startswith("groups/")] == [f"groups/t{number}" for number in range(5)]
