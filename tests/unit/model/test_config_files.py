"""Tests that the files in configs/ can be loaded, have the intended values, and explain every key."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.model.config import environment_names, load_config
from tests.support.paths import ROOT

CONFIGS = ROOT / "configs"
FILES = sorted(path.name for path in CONFIGS.glob("*.yaml"))


def test_expected_files_exist() -> None:
    names = [f"gossip{number}.yaml" for number in (1, 2, 3, 4)] + [f"node{number}.yaml" for number in (1, 2, 3)]
    assert [*names, "single.yaml"] == FILES


@pytest.mark.parametrize("name", FILES)
def test_file_loads_and_every_key_has_a_comment(name: str) -> None:
    load_config(CONFIGS / name, {})
    previous = ""
    for line in (CONFIGS / name).read_text(encoding="utf-8").splitlines():
        is_key = line.startswith("  ") and ":" in line and not line.lstrip().startswith("#")
        if is_key:
            assert previous.lstrip().startswith("#"), f"{name}: no comment above {line!r}"
        previous = line


def test_single_node_file_has_the_defaults_except_the_data_dir() -> None:
    single = load_config(CONFIGS / "single.yaml", {"SANDQ_NODE__DATA_DIR": "sandq-data"})
    plain = load_config(None, {"SANDQ_NODE__ADVERTISE_HOST": "127.0.0.1"})
    assert single == plain
    assert load_config(CONFIGS / "single.yaml", {}).node.data_dir == Path("data/single")


def test_single_node_file_names_every_key() -> None:
    text = (CONFIGS / "single.yaml").read_text(encoding="utf-8")
    for variable in environment_names():
        key = variable.removeprefix("SANDQ_").lower().split("__")[-1]
        assert f"{key}: " in text, key


def test_three_nodes_make_one_cluster() -> None:
    nodes = [load_config(CONFIGS / f"node{number}.yaml", {}) for number in (1, 2, 3)]
    assert [node.node.id for node in nodes] == ["node1", "node2", "node3"]
    assert len({node.node.data_dir for node in nodes}) == 3
    assert {node.cluster.name for node in nodes} == {"sandq"}
    assert {node.cluster.membership for node in nodes} == {"static"}
    ports = [address.port for node in nodes for address in vars(node.listen).values() if address is not None]
    assert len(set(ports)) == 12
    listen = {node.node.id: (node.listen.peer, node.listen.client, node.listen.http) for node in nodes}
    for node in nodes:
        peers = {peer.id: (peer.peer, peer.client, peer.http) for peer in node.cluster.peers}
        assert peers == {name: addresses for name, addresses in listen.items() if name != node.node.id}


def test_three_nodes_that_find_each_other() -> None:
    nodes = [load_config(CONFIGS / f"gossip{number}.yaml", {}) for number in (1, 2, 3)]
    assert [node.node.id for node in nodes] == ["node1", "node2", "node3"]
    assert [node.cluster.bootstrap for node in nodes] == [True, False, False]
    assert len({node.node.data_dir for node in nodes}) == 3
    ports = [address.port for node in nodes for address in vars(node.listen).values() if address is not None]
    assert len(set(ports)) == 12
    gossip = {node.listen.gossip for node in nodes}
    for node in nodes[1:]:
        assert nodes[0].listen.gossip in node.cluster.seeds
        assert set(node.cluster.seeds) == gossip - {node.listen.gossip}
