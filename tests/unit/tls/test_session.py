"""Tests that the work and memory that a peer can cause after the handshake are bounded."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from sandq.tls import session as session_module
from sandq.tls.session import EMPTY_RECORDS_FIRST, ENCODED_BYTES, RECORDS_AT_ONCE, TlsError, TlsSession
from tests.support.key_updates import KeyUpdates, log_keys
from tests.support.tls import NAME, contexts


def pair(keys: Path | None = None) -> tuple[TlsSession, TlsSession]:
    """Return the sessions of a server and a client after the handshake."""
    server_context, client_context = contexts()
    if keys is not None:
        client_context = ssl.create_default_context()
        client_context.check_hostname = False
        client_context.verify_mode = ssl.CERT_NONE
        log_keys(client_context, keys)
    server = TlsSession(server_context, is_server=True)
    client = TlsSession(client_context, is_server=False, host=NAME)
    client.greet()
    while not (server.is_open and client.is_open):
        server.greet(client.words())
        client.greet(server.words())
    return server, client


def updates_of(client: TlsSession, keys: Path) -> KeyUpdates:
    cipher = client._tls.cipher()
    assert cipher is not None
    return KeyUpdates(keys, cipher[0])


def test_new_keys_are_taken_but_not_again_and_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    server, client = pair(keys)
    updates = updates_of(client, keys)
    for _ in range(EMPTY_RECORDS_FIRST):
        assert server.decode(updates.next()) == b""
    most = 64 * EMPTY_RECORDS_FIRST
    assert len(server.words()) < most  # the server answers the updates
    flood = b"".join(updates.next() for _ in range(1000))
    with pytest.raises(TlsError, match="carry nothing"):
        server.decode(flood)
    assert len(server.words()) < most


def test_key_updates_are_allowed_in_proportion_to_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "EMPTY_RECORD_BYTES", 1000)
    keys = tmp_path / "keys"
    server, client = pair(keys)
    server._credit_bytes = 0
    updates = updates_of(client, keys)
    with pytest.raises(TlsError):
        server.decode(updates.next())
    server._credit_bytes = 1000
    assert server.decode(updates.next()) == b""
    assert server.decode(updates.data(bytes(1000))) == bytes(1000)
    assert server._credit_bytes >= 1000


def test_many_small_records_are_decoded_in_time_slices() -> None:
    server, client = pair()
    many = 2 * RECORDS_AT_ONCE + 1
    data = b"".join(client.encode((b"%04d" % number,)) for number in range(many))
    got, turns = [server.decode(data)], 1
    while server.is_behind:
        got.append(server.decode(b""))
        turns += 1
    assert turns == 3 and server.records == many
    assert b"".join(got) == b"".join(b"%04d" % number for number in range(many))
    assert len(got[0]) == 4 * RECORDS_AT_ONCE


def test_data_received_during_backlog_is_decoded_after_it() -> None:
    server, client = pair()
    data = b"".join(client.encode((b"%04d" % number,)) for number in range(RECORDS_AT_ONCE + 2))
    last = client.encode((b"last",))
    server.decode(data + last[:7])
    assert server.is_behind
    assert server.decode(last[7:]).endswith(b"last") and not server.is_behind


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_records_may_come_in_pieces(step: int) -> None:
    server, client = pair()
    sent = [bytes([number]) * size for number, size in enumerate((1, 30, 40_000, 5))]
    data = b"".join(client.encode((part,)) for part in sent)
    assert b"".join(server.decode(data[at : at + step]) for at in range(0, len(data), step)) == b"".join(sent)


def test_a_record_that_is_too_long_is_none() -> None:
    server, _ = pair()
    with pytest.raises(TlsError):
        server.decode(b"\x17\x03\x03\xff\xff" + bytes(20_000))


def test_much_is_encoded_in_parts() -> None:
    server, client = pair()
    large = bytes(3 * ENCODED_BYTES + 1)
    data = server.encode((large[:1000], memoryview(large)[1000:]))
    assert b"".join(client.decode(data[at : at + 50_000]) for at in range(0, len(data), 50_000)) == large


def test_after_the_end_nothing_is_encoded() -> None:
    server, client = pair()
    data = client.encode((b"x",))
    client.end()
    data += client.words()
    assert server.decode(data) == b"x" and server.has_ended
    server.end()
    assert server.words() and server.encode((b"y",)) == b""
