"""What proves to a node that a client is a gateway: the file, what the cluster shares, or what nobody else knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.model.errors import StartupError
from sandq.protocol.proofs import derive
from sandq.server.gateway_proof import gateway_keys

CLUSTER = b"what all nodes of the cluster share"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway-secret"
    path.write_bytes(b"what nodes and gateways share\n")
    path.chmod(0o600)
    return path


def test_the_file_comes_first_and_the_cluster_is_believed_as_well(file: Path) -> None:
    assert gateway_keys(file, CLUSTER) == (b"what nodes and gateways share", derive(CLUSTER, b"gateway"))


def test_nodes_of_a_cluster_believe_each_other_without_a_file() -> None:
    (key,) = gateway_keys(None, CLUSTER)
    assert gateway_keys(None, CLUSTER) == (key,) and CLUSTER not in key


def test_a_node_alone_believes_nobody_else() -> None:
    (key,) = gateway_keys(None, None)
    assert len(key) == 32 and gateway_keys(None, None) != (key,)


def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    file.chmod(0o640)
    with pytest.raises(StartupError, match=r"http\.gateway_secret_file .* is open to others"):
        gateway_keys(file, None)


def test_a_file_that_holds_too_little_is_refused(file: Path) -> None:
    file.write_bytes(b"short\n")
    with pytest.raises(StartupError, match=r"http\.gateway_secret_file .* must hold 16 to 4096 bytes"):
        gateway_keys(file, None)
