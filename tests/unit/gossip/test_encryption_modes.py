"""Tests of the way to encryption: which modes of `gossip.encrypt` understand each other, in datagrams and on
streams."""

from __future__ import annotations

import itertools
from typing import Final

import pytest

from sandq.gossip.keyring import Keyring
from sandq.gossip.messages import IndirectPing, Ping, encode
from sandq.gossip.packets import Packets
from sandq.gossip.streams import PushPull, Streams
from sandq.model.config import load_config
from sandq.model.config_schema import Address
from sandq.model.errors import ConfigError, ProtocolError

KEYRING: Final = Keyring([bytes(32)])
MODES: Final = ("false", "accept", "send", "true")
UNDERSTOOD: Final = {
    *(("false", mode) for mode in ("false", "accept", "send")),
    *(("accept", mode) for mode in ("false", "accept", "send")),
    *(("send", mode) for mode in ("accept", "send", "true")),
    *(("true", mode) for mode in ("accept", "send", "true")),
}
"""Pairs (sender mode, receiver mode)."""
PING: Final = Ping(1, "a", None, "")
INDIRECT: Final = IndirectPing(1, Address("10.0.0.1", 1), "b", True, None, "")


def options(mode: str) -> tuple[Keyring | None, dict[str, bool]]:
    return None if mode == "false" else KEYRING, {"seals": mode != "accept", "takes_plain": mode in ("accept", "send")}


def packets(mode: str) -> Packets:
    keyring, modes = options(mode)
    return Packets(keyring, lambda: bytes(12), **modes)


def streams(mode: str) -> Streams:
    keyring, modes = options(mode)
    return Streams(keyring, lambda: bytes(12), **modes)


@pytest.mark.parametrize("sender", MODES)
@pytest.mark.parametrize("receiver", MODES)
def test_datagrams(sender: str, receiver: str) -> None:
    for message in (PING, INDIRECT):  # the indirect ping begins like an encrypted packet
        for crc in (False, True):
            datagram = packets(sender).seal([encode(message)], crc=crc)
            assert (datagram == packets("false").seal([encode(message)], crc=crc)) == (sender in ("false", "accept"))
            if (sender, receiver) in UNDERSTOOD:
                assert packets(receiver).open(datagram).messages == [message]
            else:
                with pytest.raises(ProtocolError):
                    packets(receiver).open(datagram)


@pytest.mark.parametrize("sender", MODES)
@pytest.mark.parametrize("receiver", MODES)
def test_streams(sender: str, receiver: str) -> None:
    for message in (PushPull(True, (), b"x" * 100), PING):
        sealed = streams(sender).seal(message)
        reader = streams(receiver).reader()
        if (sender, receiver) in UNDERSTOOD:
            assert reader.feed(sealed) == message
        else:
            with pytest.raises(ProtocolError):
                reader.feed(sealed)


def test_each_step_of_turning_it_on_is_understood_by_the_one_before() -> None:
    for before, after in itertools.pairwise(MODES):
        assert {(before, after), (after, before)} <= UNDERSTOOD
    assert ("false", "true") not in UNDERSTOOD


def test_encrypted_packet_reserves_its_overhead() -> None:
    assert packets("accept").overhead(False) == packets("false").overhead(False) == 0
    assert packets("send").overhead(False) == packets("true").overhead(False) > 0


def test_encrypt_setting_is_parsed() -> None:
    secret = {"SANDQ_CLUSTER__SECRET_FILE": "s"}
    for said, means in (("accept", "accept"), ("send", "send"), ("true", True), ("no", False)):
        assert load_config(None, {**secret, "SANDQ_GOSSIP__ENCRYPT": said}).gossip.encrypt == means
    for said, why in (("perhaps", "is none of false, accept, send, true"), ("accept", "encrypt: accept needs keys")):
        with pytest.raises(ConfigError) as caught:
            load_config(None, {"SANDQ_GOSSIP__ENCRYPT": said})
        assert why in caught.value.message
