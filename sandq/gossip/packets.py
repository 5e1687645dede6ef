"""Datagrams: one message or several, in layers, the outermost first.

    encrypted   version u8 (1) | nonce, 12 bytes | ciphertext | tag: see `keyring`; there is no other marker
    12          CRC: u32 big-endian, IEEE, of everything after it
    9           compress: {Algo, Buf}
    7           compound: count u8 | count x (length u16 big-endian) | the messages
    0 to 13     one message

Each layer is optional, but none may occur twice or in a different order. sandq compresses nothing. Labels (244, which
separate clusters on one network) are refused: the tag `cluster` and the keys have that purpose here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from sandq.gossip.fields import U8_MAX, U16_MAX, unpack
from sandq.gossip.keyring import OVERHEAD, VERSION, Keyring
from sandq.gossip.messages import COMPOUND, COMPRESS, CRC, LABEL, Message, decode, inflating
from sandq.gossip.steps import Steps, at_once
from sandq.model.errors import ProtocolError, TooLarge

PACKET_BYTES: Final = 1400
"""Maximum size of datagrams that sandq sends."""
RECEIVE_BYTES: Final = 65535
"""Maximum size of received datagrams, before and after decompression."""
PART_BYTES: Final = 2
"""Bytes that a message takes in a compound, in addition to its own."""
COMPOUND_BYTES: Final = 2
"""Bytes that a compound takes, in addition to its messages."""
PARTS_MOST: Final = U8_MAX
CRC_BYTES: Final = 5

_CRC = struct.Struct(">BI")
_CRC_TYPE, _COMPRESS_TYPE, _COMPOUND_TYPE = bytes((CRC,)), bytes((COMPRESS,)), bytes((COMPOUND,))
_LENGTHS = [struct.Struct(f">{count}H") for count in range(PARTS_MOST + 1)]


@dataclass(frozen=True, slots=True)
class Opened:
    """`malformed`: number of invalid messages in a compound; bytes after the last message count as one."""

    messages: list[Message]
    malformed: int


class Packets:
    """Encodes and decodes datagrams. `nonce` returns 12 bytes, never the same twice; it is only called with a
    keyring."""

    def __init__(
        self, keyring: Keyring | None, nonce: Callable[[], bytes], *, seals: bool = True, takes_plain: bool = False
    ) -> None:
        """`seals`: encrypt sent datagrams. `takes_plain`: also accept unencrypted ones. Both matter only with a
        keyring."""
        self._keyring = keyring if seals else None
        self._takes_plain = takes_plain
        self._decrypt = None if keyring is None else keyring.open
        self._nonce = nonce

    def overhead(self, crc: bool) -> int:
        """Return the number of bytes that `seal` adds, without the bytes of a compound."""
        return (OVERHEAD if self._keyring else 0) + (CRC_BYTES if crc else 0)

    def seal(self, parts: Sequence[bytes], *, crc: bool) -> bytes:
        """Return a datagram of 1 to 255 encoded messages, which the caller keeps within `PACKET_BYTES`.

        `crc`: only for receivers that speak memberlist 5 or newer.
        """
        data = parts[0] if len(parts) == 1 else _compound(parts)
        if crc:
            data = _CRC.pack(CRC, crc32(data)) + data
        return data if self._keyring is None else self._keyring.seal(data, b"", self._nonce())

    def open(self, datagram: bytes) -> Opened:
        """Return the messages of a datagram. Raises ProtocolError if a layer, or the only message, is invalid."""
        return at_once(self.opening(datagram))

    def opening(self, datagram: bytes) -> Steps[Opened]:
        """Like `open`, in steps."""
        data = datagram
        if not data:
            raise ProtocolError("an empty datagram")
        if data[0] == LABEL:
            raise ProtocolError(
                "the datagram has a label: it is from a cluster with labels, which sandq does not support"
            )
        if self._decrypt is not None and self._takes_plain:
            if data[0] == VERSION:  # an indirect ping begins with the same byte
                with suppress(ProtocolError):
                    data = self._decrypt(data, b"")
        elif self._decrypt is not None:
            data = self._decrypt(data, b"")
        elif data[0] == VERSION:
            return (yield from _unsure(data))
        return (yield from _opened(data))


def _compound(parts: Sequence[bytes]) -> bytes:
    lengths = [len(part) for part in parts]
    if not 1 <= len(parts) <= PARTS_MOST or max(lengths) > U16_MAX:
        raise TooLarge(f"{len(parts)} messages of {sum(lengths)} bytes do not fit into one packet")
    return b"".join((_COMPOUND_TYPE, bytes((len(parts),)), _LENGTHS[len(parts)].pack(*lengths), *parts))


def _unsure(data: bytes) -> Steps[Opened]:
    """Decode an indirect ping, or report an encrypted packet, which begins with the same byte."""
    try:
        return (yield from _opened(data))
    except ProtocolError as error:
        raise ProtocolError(f"{error}; is it encrypted? This node has no gossip key") from None


def _opened(data: bytes) -> Steps[Opened]:
    """Return the messages of a decrypted or unencrypted datagram."""
    if data[:1] == _CRC_TYPE:
        if len(data) < CRC_BYTES or crc32(data[CRC_BYTES:]) != _CRC.unpack_from(data)[1]:
            raise ProtocolError(f"the checksum of a datagram of {len(data)} bytes is wrong")
        data = data[CRC_BYTES:]
    if data[:1] == _COMPRESS_TYPE:
        data = yield from inflating(unpack(data[1:]), RECEIVE_BYTES)
    if data[:1] == _COMPOUND_TYPE:
        return _parts(data)
    return Opened([decode(data)], 0)


def _parts(data: bytes) -> Opened:
    count = data[1] if len(data) > 1 else 0
    at = COMPOUND_BYTES + PART_BYTES * count
    if not count or len(data) < at:
        raise ProtocolError(f"a compound of {count} messages in {len(data)} bytes")
    messages: list[Message] = []
    malformed = 0
    for length in _LENGTHS[count].unpack_from(data, COMPOUND_BYTES):
        end = at + length
        try:
            # A truncated message could be parsed as a shorter one. So it is replaced by empty data, which is always
            # invalid.
            messages.append(decode(data[at:end] if end <= len(data) else b""))
        except ProtocolError:
            malformed += 1
        at = end
    return Opened(messages, malformed + (at < len(data)))
