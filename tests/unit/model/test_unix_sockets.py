"""Tests of addresses and paths of Unix sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sandq.errors import InvalidRequest
from sandq.model import unix_sockets
from sandq.model.config_types import Address
from sandq.model.ports import parse_server, socket_path
from sandq.model.unix_sockets import PATH_BYTES, reachable


@pytest.mark.parametrize("text", ["unix:/a/socket", "unix:relative", "unix:/a dir/a:b", "unix:/ä"])
def test_address_of_a_socket_is_a_host_without_port(text: str) -> None:
    host, port = parse_server(text)
    assert (host, port) == (text, 0)
    assert socket_path(host) == text.removeprefix("unix:")
    assert str(Address(host, port)) == text


@pytest.mark.parametrize("text", ["unix:", "unix:/a\0b", "unix//a"])
def test_bad_address_of_a_socket_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_server(text)


def test_host_is_no_socket() -> None:
    assert socket_path("unix.example.com") is None


def test_configuration_accepts_no_socket() -> None:
    with pytest.raises(ValueError, match="is not an address"):
        Address.parse("unix:/a/socket")


def test_short_path_is_used_as_it_is(tmp_path: Path) -> None:
    with reachable("/a/socket") as path:
        assert path == "/a/socket"
    with reachable("/" + "a" * (PATH_BYTES - 1)) as path:
        assert len(path) == PATH_BYTES


def test_long_path_is_reached_by_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100)
    directory.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with reachable(str(directory / "socket")) as path:
            listener.bind(path)
        listener.listen()
        assert (directory / "socket").is_socket()
        with reachable(str(directory / "socket")) as path:
            client.connect(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_long_path_of_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reachable(str(tmp_path / ("d" * 100) / "socket")):
        pass


def test_long_path_is_refused_where_descriptors_have_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets, "_DESCRIPTORS", "/nothing")
    with pytest.raises(InvalidRequest, match="longer than"), reachable("/" + "a" * PATH_BYTES):
        pass
