"""Tests of the configuration of an embedded node."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.embed.settings import config_of
from sandq.errors import Corruption
from sandq.model.errors import ConfigError
from sandq.storage import identity
from sandq.storage.files import RealFiles


def test_node_is_alone_and_has_no_ports(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data", False, None)
    assert config.node.data_dir == tmp_path / "data"
    assert (config.cluster.membership, config.cluster.peers, config.cluster.bootstrap) == ("static", [], True)
    assert (config.listen.http, config.listen.sql) == (None, None)
    assert not (tmp_path / "data").exists()


def test_directory_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_of("data", False, None).node.data_dir == tmp_path / "data"


def test_listen_opens_the_ports_of_the_configuration(tmp_path: Path) -> None:
    config = config_of(tmp_path, True, None)
    assert (str(config.listen.client), str(config.listen.http)) == ("127.0.0.1:7170", "127.0.0.1:2108")


def test_listen_opens_only_the_ports_that_it_names(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"client": "127.0.0.1:1"}, None)
    assert (str(config.listen.client), config.listen.http, config.listen.sql) == ("127.0.0.1:1", None, None)


def test_environment_of_the_program_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDQ_NODE__ID", "node9")
    monkeypatch.setenv("SANDQ_UNKNOWN", "x")
    assert config_of(tmp_path, False, None).node.id == "node1"


def test_file_has_the_other_settings(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("node: {id: node5, data_dir: elsewhere}\nshutdown_grace: 1s\n")
    config = config_of(tmp_path / "data", False, file)
    assert (config.node.id, config.node.data_dir) == ("node5", tmp_path / "data")
    assert config.shutdown_grace_ms == 1000


def test_mistake_in_the_file_has_its_position(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("node: {ids: node5}\n")
    with pytest.raises(ConfigError, match=r"node.yaml:1:8: node.ids: unknown key"):
        config_of(tmp_path / "data", False, file)


def test_directory_keeps_the_id_of_its_node(tmp_path: Path) -> None:
    identity.save(RealFiles(tmp_path), identity.Identity("node3", identity.new_uuid()))
    assert config_of(tmp_path, False, None).node.id == "node3"


def test_damaged_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / identity.NAME).write_bytes(b"nonsense")
    with pytest.raises(Corruption):
        config_of(tmp_path, False, None)
