"""Tests of the backend `static`: it uses the configured nodes. (tests/interop has the promises of all backends.)"""

from __future__ import annotations

from typing import Any

import pytest

from sandq.membership.static_backend import StaticMembership
from sandq.model.config_types import Address
from sandq.model.errors import InvalidRequest, InvalidSetting, TooLarge
from sandq.model.membership import Member, State

OWN, OTHER = Address("10.0.0.1", 9900), Address("node2.site", 9900)


def membership(**options: Any) -> StaticMembership:
    now_ms = iter((1000, 2000, 3000)).__next__
    return StaticMembership("node1", OWN, {"node2": OTHER}, {"id": "node1"}, now_ms, **options)


async def test_configured_nodes_are_alive_from_the_start() -> None:
    static = membership(peer_tags={"node2": {"zone": "b"}})
    assert static.name == "node1"
    assert static.members() == {
        "node1": Member("node1", OWN, {"id": "node1"}, State.ALIVE, 1000),
        "node2": Member("node2", OTHER, {"zone": "b"}, State.ALIVE, 1000),
    }
    assert membership().members()["node2"].tags == {}


async def test_own_member_has_its_tags_and_state() -> None:
    static = membership()
    await static.set_tags({"id": "node1", "zone": "a"})
    with pytest.raises(TooLarge):
        await static.set_tags({"zone": "a" * 600})
    expected = Member("node1", OWN, {"id": "node1", "zone": "a"}, State.LEFT, 2000)
    for _ in range(2):
        await static.leave()
        assert static.members()["node1"] == expected


async def test_join_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"name 10\.0\.0\.9:1 in the configuration"):
        await membership().join([Address("10.0.0.9", 1)])


@pytest.mark.parametrize(("peers", "peer_tags"), [({"node1": OTHER}, {}), ({"node2": OTHER}, {"node3": {"zone": "a"}})])
def test_contradictory_settings_are_refused(peers: dict[str, Address], peer_tags: dict[str, dict[str, str]]) -> None:
    with pytest.raises(InvalidSetting):
        StaticMembership("node1", OWN, peers, {}, lambda: 0, peer_tags=peer_tags)
