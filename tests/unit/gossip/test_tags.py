"""Tests of the tags of a node, and of nodes that are refused because of them."""

from __future__ import annotations

import pytest

from sandq.gossip.fields import META_BYTES
from sandq.gossip.serf_messages import encode_tags
from sandq.gossip.tags import OURS, judge_of, node_tags

OURS_UUID = "5d1f6ab0-9f0a-4a4f-8c22-95e8a5e63f09"


def test_node_has_the_expected_tags() -> None:
    tags = node_tags(
        node="node1",
        cluster="orders",
        cluster_uuid=None,
        store_uuid="s",
        zone="z",
        version="1.2.3",
        zone_data="2026.6",
        addresses={"client": "10.0.0.1:7170", "unserved": "x"},
    )
    assert tags == {
        "id": "node1",
        "cluster": "orders",
        "store": "s",
        "zone": "z",
        "version": "1.2.3",
        "tz": "2026.6",
        "client": "10.0.0.1:7170",
    }


def long_tags(cluster_uuid: str | None) -> dict[str, str]:
    """Tags with a name of 64 bytes each, UUIDs, and IPv6 addresses."""
    address = "[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535"
    return node_tags(
        node="n" * 64,
        cluster="c" * 64,
        cluster_uuid=cluster_uuid,
        store_uuid=OURS_UUID,
        zone="z" * 64,
        version="12.34.56.dev1234",
        zone_data="2026.12",
        addresses={"client": address, "http": address, "peer": address},
        founder=True,
    )


def test_long_tags_of_a_node_fit() -> None:
    member, founder = long_tags(OURS_UUID), long_tags(None)
    assert member.keys() | founder.keys() == OURS
    assert len(encode_tags(founder)) < len(encode_tags(member)) <= META_BYTES


def test_node_of_a_cluster_has_no_founder_tag() -> None:
    assert "founder" not in long_tags(OURS_UUID)
    assert long_tags(None)["founder"] == "1" and "uuid" not in long_tags(None)


@pytest.mark.parametrize(
    ("own_uuid", "tags", "reason"),
    [
        (OURS_UUID, {}, None),
        (OURS_UUID, {"role": "web", "id": "another"}, None),
        (OURS_UUID, {"cluster": "orders"}, None),
        (OURS_UUID, {"cluster": "orders", "id": "node1", "uuid": OURS_UUID}, None),
        (OURS_UUID, {"cluster": "Orders", "id": "node1"}, "cluster"),
        (OURS_UUID, {"cluster": "", "id": "node1"}, "cluster"),
        (OURS_UUID, {"cluster": "orders", "id": "node1", "uuid": "another"}, "cluster_uuid"),
        (None, {"cluster": "orders", "id": "node1", "uuid": "another"}, None),
        (OURS_UUID, {"cluster": "orders", "id": "node2"}, "node_id"),
        (None, {"cluster": "orders", "id": ""}, "node_id"),
    ],
)
def test_tags_decide_who_may_be_a_member(own_uuid: str | None, tags: dict[str, str], reason: str | None) -> None:
    assert judge_of("orders", lambda: own_uuid)("node1", tags) == reason


def test_cluster_uuid_is_read_at_each_check() -> None:
    """A joining node learns the cluster UUID after the tags of other nodes."""
    known: list[str | None] = [None]
    judge = judge_of("orders", lambda: known[0])
    tags = {"cluster": "orders", "uuid": "another"}
    assert judge("node1", tags) is None
    known[0] = OURS_UUID
    assert judge("node1", tags) == "cluster_uuid"
