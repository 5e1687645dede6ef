"""Datagrams: one message or several, in layers, the outermost first.

    encrypted   version u8 (1) | nonce, 12 bytes | ciphertext | tag: see `keyring`; nothing else announces it
    12          CRC: u32 big-endian, IEEE, of all that follows
    9           compress: {Algo, Buf}
    7           compound: count u8 | count x (length u16 big-endian) | the messages
    0 to 13     one message

Every layer may be missing, none may come twice or in another order. sandq compresses nothing. Labels (244, which set
clusters on one network apart) are refused: the tag `cluster` and the keys do that here.
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
"""What sandq sends at most."""
RECEIVE_BYTES: Final = 65535
"""What is received at most, and what may come out of a packet that is compressed."""
PART_BYTES: Final = 2
"""What a message needs in a compound, besides its own bytes."""
COMPOUND_BYTES: Final = 2
"""What a compound needs besides its messages."""
PARTS_MOST: Final = U8_MAX
CRC_BYTES: Final = 5

_CRC = struct.Struct(">BI")
_CRC_TYPE, _COMPRESS_TYPE, _COMPOUND_TYPE = bytes((CRC,)), bytes((COMPRESS,)), bytes((COMPOUND,))
_LENGTHS = [struct.Struct(f">{count}H") for count in range(PARTS_MOST + 1)]


@dataclass(frozen=True, slots=True)
class Opened:
    """`malformed`: how many messages of a compound are none, bytes behind the last one included."""

    messages: list[Message]
    malformed: int


class Packets:
    """`nonce` gives 12 bytes, never the same twice; it is not called without a keyring."""

    def __init__(
        self, keyring: Keyring | None, nonce: Callable[[], bytes], *, seals: bool = True, takes_plain: bool = False
    ) -> None:
        """`seals`: whether what is sent is encrypted, `takes_plain`: whether what is not is taken, too, where there is
        a keyring."""
        self._keyring = keyring if seals else None
        self._takes_plain = takes_plain
        self._decrypt = None if keyring is None else keyring.open
        self._nonce = nonce

    def overhead(self, crc: bool) -> int:
        """Bytes that `seal` adds, besides those of a compound."""
        return (OVERHEAD if self._keyring else 0) + (CRC_BYTES if crc else 0)

    def seal(self, parts: Sequence[bytes], *, crc: bool) -> bytes:
        """A datagram of 1 to 255 encoded messages; the caller keeps it within `PACKET_BYTES`. `crc`: only for those
        who speak memberlist 5 or newer."""
        data = parts[0] if len(parts) == 1 else _compound(parts)
        if crc:
            data = _CRC.pack(CRC, crc32(data)) + data
        return data if self._keyring is None else self._keyring.seal(data, b"", self._nonce())

    def open(self, datagram: bytes) -> Opened:
        """The messages of a datagram. ProtocolError when a layer is wrong, or the only message."""
        return at_once(self.opening(datagram))

    def opening(self, datagram: bytes) -> Steps[Opened]:
        """Do the same in steps."""
        data = datagram
        if not data:
            raise ProtocolError("an empty datagram")
        if data[0] == LABEL:
            raise ProtocolError("the datagram has a label: it is of a cluster with labels, and sandq has none")
        if self._decrypt is not None and self._takes_plain:
            if data[0] == VERSION:  # so begins an indirect ping, too
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
    """Of an indirect ping, or of what begins with the same byte: a packet that is encrypted."""
    try:
        return (yield from _opened(data))
    except ProtocolError as error:
        raise ProtocolError(f"{error}; is it encrypted? This node has no gossip key") from None


def _opened(data: bytes) -> Steps[Opened]:
    """What is in a datagram that is not encrypted, or not any more."""
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
            # A message that was cut off can look like a shorter one: no bytes are none.
            messages.append(decode(data[at:end] if end <= len(data) else b""))
        except ProtocolError:
            malformed += 1
        at = end
    return Opened(messages, malformed + (at < len(data)))
