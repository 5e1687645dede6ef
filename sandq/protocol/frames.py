"""Frames: convert bytes of a connection to `[type, request_id, fields...]` and back.

    stream  = frame*
    frame   = length u32 big-endian | body      length counts the body's bytes: 1 to the limit (32 MiB)
    body    = msgpack array [type, request id, field...]      type 0..255, request id u64
    request = [type 1..254, request id, field...]
    reply   = [0, request id, field...]
    error   = [255, request id, code str, message str, retriable bool, details map]
              request id 0: it is about the connection, which is closed after it
    push    = [7 (DELIVER), subscription id, field...]    or the id of a LEASE request

CREDIT and ON_BEHALF are the requests without a reply; their request id is 0. Text is msgpack str (UTF-8), bytes are
msgpack bin. Fields contain no ext types, no floats, and no map keys other than text. Every number of `Type` is part of
the protocol: never change one.

A frame from the network is decoded only when it is complete, and the memory of the result is bounded. An array or a map
has at most 65,536 items. Everything in a frame except the bin fields of its outermost array (the batches) has at most 4
MiB, and at most 524,288 arrays and maps. Without the second bound, a 32 MiB frame of empty arrays would become 2 GiB of
objects. Without the third bound, a 4 MiB frame would become 270 MB. The bounds apply to requests. A client does not
apply them, because it trusts the node that it has chosen, and replies may contain values within maps.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgpack

from sandq.model.errors import FrameTooLarge, ProtocolError, SandqError, WrongPort, from_wire, to_wire
from sandq.model.limits import DEFAULT

T = TypeVar("T")

PROTOCOL_VERSION: Final = 2
"""Version 1 was used by development versions."""

ITEMS_MAX: Final = 65_536
"""Maximum number of items in one array or map of a frame."""
CONTROL_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of a request without the bin fields of its outermost array."""

PARTS_MAX: Final = 8 * ITEMS_MAX
"""Maximum number of arrays and maps in a request that is decoded in steps. An item of an ACK has three arrays."""

LARGE_BYTES: Final = 256 << 10
"""Frames above this size, in bytes, are decoded in steps if their reader also serves other connections."""
PIECE_BYTES: Final = 16 << 10
"""Maximum bytes of a large frame that are decoded in one step."""
JOINED_BYTES: Final = 16 << 10
"""Parts of a frame up to this size, in bytes, are copied into one buffer. Each larger part is sent as a separate
buffer."""
_STEP_ITEMS: Final = 256
_STEP_DEPTH: Final = 8

Frame = list[Any]
"""A decoded body; the first two items are ints: type and request id."""

LENGTH = struct.Struct(">I")
_LENGTH_BYTES = 4
_PREFIX_MAX_ITEMS = 14  # a fixarray has at most 15 items, and a tail is one of them
_METHODS = (b"GET ", b"POST", b"PUT ", b"DELE", b"HEAD", b"OPTI", b"PATC", b"PRI ")
_TLS_HANDSHAKE = b"\x16\x03"
_ARRAY_CODES = frozenset((0xDC, 0xDD))
_BIN_CODES = frozenset((0xC4, 0xC5, 0xC6))


class Type(IntEnum):
    """Types of frames. Files do not contain the numbers, but all clients use them: never change a number."""

    REPLY = 0
    HELLO = 1
    METADATA = 2
    PRODUCE = 3
    SUBSCRIBE = 4
    UNSUBSCRIBE = 5
    CREDIT = 6
    DELIVER = 7
    FETCH = 8
    ACK = 9
    NACK = 10
    EXTEND = 11
    GET = 12
    LIST = 13
    MOVE = 14
    CANCEL = 15
    WHY = 16
    PING = 17
    JOB_START = 18
    JOB_STATUS = 19
    FORECAST = 20
    JOB_STOP = 21
    LEASE = 22
    MEASURE = 23
    PROVE = 24
    ON_BEHALF = 25
    ACK_THEN = 26
    LEASE_PAUSE = 27
    PAUSE_LIST = 28
    TOPIC_CREATE = 32
    TOPIC_DELETE = 33
    TOPIC_UPDATE = 34
    TOPIC_NAMES = 35
    TOPIC_ENSURE = 36
    OVERVIEW = 37
    TOPIC_HISTORY = 38
    CONSUMER_LIST = 39
    GROUP_LIST = 40
    TOPIC_STATS = 41
    GROUP_SEEK = 42
    GROUP_DELETE = 43
    GROUP_UPDATE = 44
    DEAD_LIST = 45
    HOLD = 46
    GROUP_PAUSE = 47
    CLUSTER_INFO = 48
    CLUSTER_CLOCK = 49
    CLUSTER_INIT = 50
    NODE_CHANGE = 51
    TRANSFER = 52
    REBUILD = 53
    CLOCK_RESET = 54
    GROUP_LIMIT = 55
    DEAD_REDRIVE = 56
    DEAD_PURGE = 57
    GROUP_PUSH = 58
    PUSH_LIST = 59
    FINALIZE = 60
    LOG_LEVEL = 61
    DEBUG_DUMP = 62
    ENTRY_SKIP = 63
    KV_GET = 64
    KV_SCAN = 65
    KV_WATCH = 66
    LIMIT_LIST = 72
    SCHEDULE_PUT = 80
    SCHEDULE_CHANGE = 81
    SCHEDULE_GET = 82
    SCHEDULE_LIST = 83
    SCHEDULE_PREVIEW = 84
    IDENTIFY = 96
    IDENTITY_PUT = 97
    IDENTITY_DELETE = 98
    IDENTITY_LIST = 99
    ROLE_PUT = 100
    ROLE_DELETE = 101
    ROLE_LIST = 102
    AUDIT_LIST = 103
    AUDIT_NOTE = 104
    BACKUP_TOPICS = 112
    BACKUP_ACCESS = 113
    BACKUP_BEGIN = 114
    BACKUP_READ = 115
    BACKUP_END = 116
    BACKUP_LOG = 117
    RESTORE_TOPIC = 120
    RESTORE_BEGIN = 121
    RESTORE_ROWS = 122
    RESTORE_END = 123
    RESTORE_OPEN = 124
    SLO = 140
    ERROR = 255


RESERVED: Final = frozenset(
    {*range(67, 72)}  # KV_*
    | {85}  # SCHEDULE_*
)
"""Numbers reserved for later. The reply to such a request is INVALID, "not implemented by this version"."""


class FrameReader:
    """Splits the bytes that arrive on one connection into frames.

    `feed` accepts the bytes in pieces of any size. It raises only ProtocolError, FrameTooLarge, or WrongPort (an HTTP
    request or a TLS handshake at the start of the connection). After an error, do not use the reader again, and close
    the connection. The reader keeps at most one incomplete frame, of at most `max_frame_bytes`.
    """

    __slots__ = (
        "_control_bytes",
        "_defer_bytes",
        "_first_frame_bytes",
        "_kept",
        "_max_frame_bytes",
        "_started",
        "_wanted",
    )

    def __init__(
        self,
        max_frame_bytes: int = DEFAULT.frame_bytes,
        control_bytes: int = CONTROL_BYTES,
        first_frame_bytes: int | None = None,
        defer_bytes: int = sys.maxsize,
    ) -> None:
        """Make a reader for one connection.

        `first_frame_bytes`: lower maximum size for the first frame. `defer_bytes`: larger frames are returned as a
        `LargeFrame`, if they also have more bytes than `ITEMS_MAX`.
        """
        self._defer_bytes = defer_bytes
        self._max_frame_bytes = max_frame_bytes
        self._first_frame_bytes = max_frame_bytes if first_frame_bytes is None else first_frame_bytes
        self._control_bytes = control_bytes
        self._kept = bytearray()
        self._wanted = _LENGTH_BYTES  # received bytes needed before the next decoding
        self._started = False

    @property
    def buffered_bytes(self) -> int:
        """Number of received bytes of the incomplete frame."""
        return len(self._kept)

    @property
    def wanted_bytes(self) -> int:
        """Total bytes of the incomplete frame, as far as is known."""
        return self._wanted

    def feed(self, data: bytes | bytearray | memoryview, most: int = sys.maxsize) -> list[Any]:
        """Return the frames that `data` completes, in order: none, one or many. If it returns `most` frames, more
        frames may be complete: `feed(b"", most)` returns these."""
        kept = self._kept
        if kept:
            kept += data
            if len(kept) < self._wanted:
                return []
            data = kept
            self._kept = kept = bytearray()
        frames: list[Any] = []
        add, unpack, length_at = frames.append, msgpack.unpackb, LENGTH.unpack_from
        end, start = len(data), 0
        limit = self._max_frame_bytes if self._started else self._first_frame_bytes
        self._wanted = _LENGTH_BYTES
        with memoryview(data) as view:
            while end - start >= _LENGTH_BYTES:
                (length,) = length_at(view, start)
                if length > limit or not length:
                    raise self._bad_length(bytes(view[start : start + 8]), length)
                if not self._started:
                    self._started, limit = True, self._max_frame_bytes
                stop = start + _LENGTH_BYTES + length
                if stop > end:
                    self._wanted = _LENGTH_BYTES + length
                    break
                body = view[start + _LENGTH_BYTES : stop]
                try:
                    if length <= ITEMS_MAX:
                        frame = unpack(body)  # msgpack's own bound: no array has more items than the frame bytes
                    elif length > self._defer_bytes:
                        add(LargeFrame(body, self._control_bytes))
                        start = stop
                        most -= 1
                        if not most:
                            break
                        continue
                    else:
                        if length > self._control_bytes:
                            _check_control_bytes(body, self._control_bytes)
                        frame = unpack(body, max_array_len=ITEMS_MAX, max_map_len=ITEMS_MAX)
                    kind, request_id = frame[0], frame[1]
                except SandqError:
                    raise
                except Exception as error:  # msgpack raises a dozen types for invalid data
                    raise _undecodable(length, error) from None
                if type(frame) is not list or type(kind) is not int or type(request_id) is not int:
                    raise ProtocolError(_NO_FRAME)
                if request_id < 0 or not 0 <= kind <= 255:
                    raise ProtocolError(f"type {kind} or request id {request_id} of a frame is out of range")
                add(frame)
                start = stop
                most -= 1
                if not most:
                    break
            if start < end:
                kept += view[start:]
        return frames

    def _bad_length(self, head: bytes, length: int) -> SandqError:
        if not self._started:
            if head.startswith(_METHODS):
                return WrongPort("this port speaks sandq's binary protocol, and the request is HTTP", speaks="http")
            if head.startswith(b"HTTP"):
                return WrongPort("an HTTP server answers on this port, not sandq's binary protocol", speaks="http")
            if head.startswith(_TLS_HANDSHAKE):
                return WrongPort("this port speaks plain TCP, and this is a TLS handshake", speaks="tls")
        if not length:
            return ProtocolError("a frame of length 0")
        if not self._started and length <= self._max_frame_bytes:
            return ProtocolError(
                f"the first frame of a connection has {length} bytes: it begins with HELLO, of at most "
                f"{self._first_frame_bytes}"
            )
        return FrameTooLarge(
            f"a frame of {length} bytes: {self._max_frame_bytes} is the limit (frame_bytes)",
            limit="frame_bytes",
            maximum=self._max_frame_bytes,
            size=length,
        )


_NO_FRAME: Final = "a frame must be an array that begins with two numbers: type, request id"


_HEAD_BYTES: Final = {0xDC: 3, 0xDD: 5}
"""Bytes of the header of an array with 16 items or more."""


class LargeFrame:
    """A complete frame that takes long to decode."""

    __slots__ = ("_body", "_control_bytes")

    def __init__(self, body: memoryview, control_bytes: int) -> None:
        self._body = body
        self._control_bytes = control_bytes

    @property
    def kind(self) -> int:
        """Type of the frame, read without decoding the frame. Correct only for types below 128, which are a single
        byte."""
        return self._body[_HEAD_BYTES.get(self._body[0], 1)]

    def decode(self) -> Generator[int, None, Frame]:
        """Decode the frame in steps. Yield the size of each step, in items or in pieces of bytes. Raise the errors of
        `FrameReader.feed`."""
        try:
            frame = yield from _decode(self._body, 0, self._control_bytes, _unpacker())
            kind, request_id = frame[0], frame[1]
        except SandqError:
            raise
        except Exception as error:
            raise _undecodable(len(self._body), error) from None
        if type(frame) is not list or type(kind) is not int or type(request_id) is not int:
            raise ProtocolError(_NO_FRAME)
        if request_id < 0 or not 0 <= kind <= 255:
            raise ProtocolError(f"type {kind} or request id {request_id} of a frame is out of range")
        return frame


def _unpacker() -> Callable[[memoryview], Any]:
    """Return a function that decodes the pieces of one frame, and counts its arrays and maps."""
    parts = 0

    def count(part: T) -> T:
        nonlocal parts
        parts += 1
        if parts > PARTS_MAX:
            raise ValueError(f"it has more than {PARTS_MAX} arrays and maps")
        return part

    return partial(
        msgpack.unpackb,
        max_array_len=ITEMS_MAX,
        max_map_len=ITEMS_MAX,
        list_hook=count,
        object_hook=count,
        ext_hook=_no_ext,
    )


def _no_ext(code: int, data: bytes) -> None:
    raise ValueError(f"it has a value of ext type {code}")


def _decode(
    body: memoryview, depth: int, control_bytes: int, unpack: Callable[[memoryview], Any]
) -> Generator[int, None, Any]:
    """Decode one value in steps. `control_bytes`: maximum size of an outermost array without its bin fields."""
    code = body[0]
    if len(body) <= PIECE_BYTES or depth == _STEP_DEPTH or not (code >> 4 == 0x9 or code in _ARRAY_CODES):
        yield 1 + len(body) // PIECE_BYTES
        return unpack(body)
    # Step over the items of the array with `skip`, which builds no objects. Decode each item or piece by itself.
    walker = msgpack.Unpacker(max_buffer_size=len(body), max_array_len=ITEMS_MAX, max_map_len=ITEMS_MAX)
    walker.feed(body)
    count = walker.read_array_header()
    if count > ITEMS_MAX:
        raise ValueError(f"an array of {count} items; {ITEMS_MAX} is the limit")
    values: list[Any] = []
    control = 0
    for number in range(1, count + 1):
        start = walker.tell()
        walker.skip()
        stop = walker.tell()
        if not depth and body[start] not in _BIN_CODES:
            control += stop - start
            if control > control_bytes:
                raise _too_much_control(control, control_bytes)
        if stop - start > PIECE_BYTES:
            values.append((yield from _decode(body[start:stop], depth + 1, control_bytes, unpack)))
        else:
            values.append(unpack(body[start:stop]))
        if not number % _STEP_ITEMS:
            yield _STEP_ITEMS
    if walker.tell() != len(body):
        raise ValueError("there is more behind its end")
    return values


def _undecodable(length: int, error: Exception) -> ProtocolError:
    why = str(error)[:200] or type(error).__name__
    return ProtocolError(f"a frame of {length} bytes cannot be decoded: {why}")


def _check_control_bytes(body: memoryview, limit: int) -> None:
    """Refuse a large frame whose objects would need far more memory than the frame itself (see the module's
    docstring)."""
    try:
        skimmer = msgpack.Unpacker(max_buffer_size=len(body), max_array_len=ITEMS_MAX, max_map_len=ITEMS_MAX)
        skimmer.feed(body)
        control_bytes = 0
        for _ in range(skimmer.read_array_header()):
            start = skimmer.tell()
            skimmer.skip()
            if body[start] not in _BIN_CODES:
                control_bytes += skimmer.tell() - start
    except Exception as error:
        raise _undecodable(len(body), error) from None
    if control_bytes > limit:
        raise _too_much_control(control_bytes, limit)


def _too_much_control(size: int, limit: int) -> FrameTooLarge:
    return FrameTooLarge(
        f"a frame has {size} bytes or more in addition to its batches: {limit} is the limit",
        limit="control_bytes",
        maximum=limit,
        size=size,
    )


_pack = msgpack.Packer(autoreset=True).pack
_pack_header = msgpack.Packer(autoreset=True).pack_array_header
_pack_lenient = msgpack.Packer(autoreset=True, default=str, unicode_errors="backslashreplace").pack


def encode_frame(*fields: Any) -> bytes:
    """Return the bytes of the frame `[fields...]`. The first two fields are type and request id. Tuples become
    arrays."""
    body: bytes = _pack(fields)
    return LENGTH.pack(len(body)) + body


def encode_with_tail(fields: tuple[Any, ...], tail: bytes | bytearray | memoryview) -> bytes:
    """Return the frame `[fields..., tail]` where `tail` is a large bin: it is copied once, not three times."""
    assert 2 <= len(fields) <= _PREFIX_MAX_ITEMS, "a frame of more than 15 fields"
    body = bytearray(_pack(fields))
    body[0] += 1  # the fixarray header: one item more
    size = len(tail)
    body += pack_large_bin(size)
    return b"".join((LENGTH.pack(len(body) + size), body, tail))


def encode_reply(request_id: int, *fields: Any) -> bytes:
    """Return the reply to a request that succeeded."""
    return encode_frame(0, request_id, *fields)


class PackedArray(NamedTuple):
    """An array of `length` encoded items. Each part contains some of the items."""

    length: int
    parts: Sequence[bytes]


def encode_packed(request_id: int, *fields: bytes | PackedArray) -> list[bytes]:
    """Return a reply with fields that are encoded already, in parts like the result of `frame_of`."""
    parts = [_pack_header(2 + len(fields)), _pack(0), _pack(request_id)]
    for field in fields:
        if isinstance(field, PackedArray):
            parts += (_pack_header(field.length), *field.parts)
        else:
            parts.append(field)
    return frame_of(parts)


def frame_of(parts: Sequence[bytes]) -> list[bytes]:
    """Return the frame of a body that is given in parts, as buffers to send one after the other. Small parts are
    joined; large parts are not copied."""
    joined: list[bytes] = []
    small = [LENGTH.pack(sum([len(part) for part in parts]))]
    for part in filter(None, parts):
        if len(part) <= JOINED_BYTES:
            small.append(part)
        else:
            if small:
                joined.append(b"".join(small))
                small = []
            joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined


def pack_large_bin(size: int) -> bytes:
    """Return the msgpack header of a bin whose bytes are a separate part of a frame."""
    return b"\xc6" + LENGTH.pack(size)


def encode_replies(replies: Iterable[tuple[Any, ...]]) -> bytes:
    """Return the concatenated bytes of many replies. Each is given as its request id and fields."""
    pack, length = _pack, LENGTH.pack
    frames: list[bytes] = []
    for reply in replies:
        body = pack((0, *reply))
        frames += (length(len(body)), body)
    return b"".join(frames)


def encode_error(request_id: int, error: SandqError) -> bytes:
    """Return the reply to a request that failed. Details that msgpack cannot encode are sent as text, and unpaired
    surrogates as escapes."""
    code, message, retriable, details = to_wire(error)
    body: bytes = _pack_lenient((255, request_id, code, message, retriable, details))
    return LENGTH.pack(len(body)) + body


def decode_error(frame: Frame) -> SandqError:
    """Return the error in an ERROR frame. For a malformed frame, return a ProtocolError."""
    if len(frame) >= 6:
        code, message, retriable, details = frame[2:6]
        if type(code) is str and type(message) is str and type(retriable) is bool and type(details) is dict:
            return from_wire(code, message, retriable, details)
    return ProtocolError(f"a malformed error frame: {str(frame)[:200]}")
