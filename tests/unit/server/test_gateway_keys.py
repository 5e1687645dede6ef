"""Tests of the proofs that a client is a gateway: the key file, the cluster's secret, or a random key."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.broker.peers.secret import Secrets
from sandq.model.errors import StartupError
from sandq.protocol.proofs import derive
from sandq.server.gateway_proof import SETTING, GatewayKeys

CLUSTER = b"what all nodes of the cluster share"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "gateway-secret", b"what nodes and gateways share\n")


@pytest.fixture
def cluster(tmp_path: Path) -> Secrets:
    return Secrets(written(tmp_path / "secret", CLUSTER))


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_key_file_comes_before_the_cluster_secret(file: Path, cluster: Secrets) -> None:
    keys = GatewayKeys(Secrets(file, SETTING), cluster)
    assert keys.current == (b"what nodes and gateways share", derive(CLUSTER, b"gateway"))
    assert keys.first == keys.current[0] and "share" not in repr(keys)


def test_nodes_of_a_cluster_believe_each_other_without_a_file(cluster: Secrets) -> None:
    (key,) = GatewayKeys(None, cluster).current
    assert GatewayKeys(None, cluster).current == (key,) and CLUSTER not in key


def test_single_node_trusts_only_itself() -> None:
    keys = GatewayKeys(None, None)
    assert len(keys.first) == 32 and keys.first == keys.first and GatewayKeys(None, None).first != keys.first


def test_keys_are_those_of_the_files_as_they_are_now(file: Path, cluster: Secrets) -> None:
    own = Secrets(file, SETTING)
    keys = GatewayKeys(own, cluster)
    written(file, b"another one, as long\n---\nwhat nodes and gateways share")
    assert own.check()
    assert keys.current == (b"another one, as long", b"what nodes and gateways share", derive(CLUSTER, b"gateway"))


def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    file.chmod(0o640)
    with pytest.raises(StartupError, match=r"http\.gateway_secret_file .* is open to others"):
        Secrets(file, SETTING)


def test_a_file_that_holds_too_little_is_refused(file: Path) -> None:
    file.write_bytes(b"short\n")
    with pytest.raises(StartupError, match=r"http\.gateway_secret_file .* must hold 16 to 4096 bytes"):
        Secrets(file, SETTING)
