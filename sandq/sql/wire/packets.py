"""Encodes and decodes the payloads of MySQL's packets, without sockets.

Decoding checks all lengths: a payload of a client that ends early or has impossible values raises `Malformed`.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum, IntFlag
from typing import Any, Final

from sandq.sql.errors import SqlError

MAX_PAYLOAD: Final = 0xFFFFFF
"""Maximum size of a packet's payload. A payload of this size or more is split into several packets."""
NONCE_BYTES: Final = 20
UTF8MB4: Final = 45
BINARY: Final = 63
CACHING_SHA2: Final = "caching_sha2_password"
FULL_AUTHENTICATION: Final = b"\x01\x04"
_ATTRIBUTES_MOST: Final = 64


class Malformed(Exception):
    """A packet violates the protocol."""


class Can(IntFlag):
    """Capability flags of server and client."""

    LONG_PASSWORD = 1
    FOUND_ROWS = 1 << 1
    LONG_FLAG = 1 << 2
    CONNECT_WITH_DB = 1 << 3
    NO_SCHEMA = 1 << 4
    ODBC = 1 << 6
    IGNORE_SPACE = 1 << 8
    PROTOCOL_41 = 1 << 9
    INTERACTIVE = 1 << 10
    SSL = 1 << 11
    TRANSACTIONS = 1 << 13
    SECURE_CONNECTION = 1 << 15
    MULTI_RESULTS = 1 << 17
    PS_MULTI_RESULTS = 1 << 18
    PLUGIN_AUTH = 1 << 19
    CONNECT_ATTRS = 1 << 20
    PLUGIN_AUTH_LENENC = 1 << 21
    DEPRECATE_EOF = 1 << 24


SERVER_CAN: Final = (
    Can.LONG_PASSWORD
    | Can.FOUND_ROWS
    | Can.LONG_FLAG
    | Can.CONNECT_WITH_DB
    | Can.ODBC
    | Can.IGNORE_SPACE
    | Can.PROTOCOL_41
    | Can.INTERACTIVE
    | Can.TRANSACTIONS
    | Can.SECURE_CONNECTION
    | Can.MULTI_RESULTS
    | Can.PS_MULTI_RESULTS
    | Can.PLUGIN_AUTH
    | Can.CONNECT_ATTRS
    | Can.PLUGIN_AUTH_LENENC
    | Can.DEPRECATE_EOF
)


class Command(IntEnum):
    """The first byte of a client's command."""

    QUIT = 0x01
    INIT_DB = 0x02
    QUERY = 0x03
    FIELD_LIST = 0x04
    STATISTICS = 0x09
    PROCESS_KILL = 0x0C
    PING = 0x0E
    CHANGE_USER = 0x11
    STMT_PREPARE = 0x16
    STMT_EXECUTE = 0x17
    STMT_SEND_LONG_DATA = 0x18
    STMT_CLOSE = 0x19
    STMT_RESET = 0x1A
    SET_OPTION = 0x1B
    STMT_FETCH = 0x1C
    RESET_CONNECTION = 0x1F


class Type(IntEnum):
    """The type of a column or a parameter."""

    TINY = 0x01
    SHORT = 0x02
    LONG = 0x03
    FLOAT = 0x04
    DOUBLE = 0x05
    NULL = 0x06
    TIMESTAMP = 0x07
    LONGLONG = 0x08
    INT24 = 0x09
    DATE = 0x0A
    TIME = 0x0B
    DATETIME = 0x0C
    YEAR = 0x0D
    VARCHAR = 0x0F
    BIT = 0x10
    JSON = 0xF5
    NEWDECIMAL = 0xF6
    TINY_BLOB = 0xF9
    MEDIUM_BLOB = 0xFA
    LONG_BLOB = 0xFB
    BLOB = 0xFC
    VAR_STRING = 0xFD
    STRING = 0xFE


AUTOCOMMIT: Final = 2
"""Status flag in replies of the server."""

# ------------------------------------------------------------------------------------------------------ writing


def lenenc(number: int) -> bytes:
    """Encode a number as a length-encoded integer."""
    if number < 251:
        return bytes((number,))
    if number < 1 << 16:
        return b"\xfc" + number.to_bytes(2, "little")
    if number < 1 << 24:
        return b"\xfd" + number.to_bytes(3, "little")
    return b"\xfe" + number.to_bytes(8, "little")


def lenenc_text(text: str) -> bytes:
    """Encode a text as a length-encoded string."""
    data = text.encode("utf-8", "replace")
    return lenenc(len(data)) + data


def greeting(connection: int, nonce: bytes, version: str, capabilities: Can) -> bytes:
    """Encode the first packet of the server: HandshakeV10."""
    can = int(capabilities)
    return b"".join(
        (
            b"\x0a",
            version.encode() + b"\0",
            connection.to_bytes(4, "little"),
            nonce[:8] + b"\0",
            (can & 0xFFFF).to_bytes(2, "little"),
            bytes((UTF8MB4,)),
            AUTOCOMMIT.to_bytes(2, "little"),
            (can >> 16).to_bytes(2, "little"),
            bytes((NONCE_BYTES + 1,)),
            bytes(10),
            nonce[8:] + b"\0",
            CACHING_SHA2.encode() + b"\0",
        )
    )


def auth_switch(nonce: bytes) -> bytes:
    """Encode AuthSwitchRequest: asks the client to use this server's authentication method."""
    return b"\xfe" + CACHING_SHA2.encode() + b"\0" + nonce + b"\0"


def ok(*, affected: int = 0, is_end: bool = False) -> bytes:
    """Encode OK: the command succeeded. `is_end`: it ends the rows of a result."""
    head = b"\xfe" if is_end else b"\0"
    return head + lenenc(affected) + b"\0" + AUTOCOMMIT.to_bytes(2, "little") + b"\0\0"


def eof() -> bytes:
    """Encode EOF: ends definitions or rows for clients without DEPRECATE_EOF."""
    return b"\xfe\0\0" + AUTOCOMMIT.to_bytes(2, "little")


def error(failure: SqlError) -> bytes:
    """Encode ERR: the command failed."""
    text = failure.message.encode("utf-8", "replace")[:4096]
    return b"\xff" + failure.number.to_bytes(2, "little") + b"#" + failure.state.encode() + text


def column(name: str, kind: Type, charset: int, length: int, decimals: int) -> bytes:
    """Encode a ColumnDefinition41."""
    flags = 0x80 if charset == BINARY else 0
    empty = b"\0"
    return b"".join(
        (
            b"\x03def",
            empty * 3,
            lenenc_text(name),
            lenenc_text(name),
            b"\x0c",
            struct.pack("<HIBHB", charset, min(length, 2**32 - 1), kind, flags, decimals),
            b"\0\0",
        )
    )


def prepared(number: int, columns: int, parameters: int) -> bytes:
    """Encode COM_STMT_PREPARE_OK."""
    return b"\0" + struct.pack("<IHHBH", number, columns, parameters, 0, 0)


# ------------------------------------------------------------------------------------------------------ reading


class Reader:
    """Reads a payload from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self._data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises Malformed if fewer are left."""
        if not 0 <= count <= self.left:
            raise Malformed("a packet ends early")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, size: int, *, signed: bool = False) -> int:
        """Read an integer of this many bytes."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def lenenc(self) -> int:
        """Read a length-encoded integer."""
        first = self.number(1)
        if first < 0xFB:
            return first
        if first == 0xFC:
            return self.number(2)
        if first == 0xFD:
            return self.number(3)
        if first == 0xFE:
            return self.number(8)
        raise Malformed("a length is expected")

    def lenenc_bytes(self) -> bytes:
        """Read length-encoded bytes."""
        return self.take(self.lenenc())

    def until_null(self) -> bytes:
        """Read bytes up to a zero byte; the zero is skipped."""
        end = self._data.find(b"\0", self.at)
        if end < 0:
            raise Malformed("a text without an end")
        found = self._data[self.at : end]
        self.at = end + 1
        return found

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.take(self.left)


@dataclass(frozen=True)
class Hello:
    """The client's reply to the greeting. `wants_tls`: the client starts TLS and then sends a complete reply."""

    capabilities: Can
    wants_tls: bool = False
    user: str = ""
    auth: bytes = b""
    database: str | None = None
    plugin: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


def read_hello(data: bytes) -> Hello:
    """Decode a HandshakeResponse41, or the SSLRequest before it. Raises Malformed."""
    reader = Reader(data)
    capabilities = Can(reader.number(4) & (int(SERVER_CAN | Can.SSL)))
    if not capabilities & Can.PROTOCOL_41:
        raise Malformed("a client of MySQL 4.1 or later is required")
    reader.take(4 + 1 + 23)
    if not reader.left:
        return Hello(capabilities, wants_tls=True)
    user = _text(reader.until_null())
    if capabilities & Can.PLUGIN_AUTH_LENENC:
        auth = reader.lenenc_bytes()
    elif capabilities & Can.SECURE_CONNECTION:
        auth = reader.take(reader.number(1))
    else:
        auth = reader.until_null()
    database = plugin = None
    if capabilities & Can.CONNECT_WITH_DB and reader.left:
        database = _text(reader.until_null()) or None
    if capabilities & Can.PLUGIN_AUTH and reader.left:
        plugin = _text(reader.until_null())
    attributes: dict[str, str] = {}
    if capabilities & Can.CONNECT_ATTRS and reader.left:
        inner = Reader(reader.take(min(reader.lenenc(), reader.left)))
        while inner.left and len(attributes) < _ATTRIBUTES_MOST:
            name = _text(inner.lenenc_bytes())
            attributes[name] = _text(inner.lenenc_bytes())
    return Hello(capabilities, False, user, auth, database, plugin, attributes)


def _text(data: bytes) -> str:
    """Return bytes as text; invalid UTF-8 is replaced."""
    return data.decode("utf-8", "replace")


@dataclass
class Statement:
    """A prepared statement: its text between the parameters, and the long data that was received for parameters."""

    number: int
    parts: tuple[str, ...]
    types: list[tuple[int, bool]] = field(default_factory=list)
    long_data: dict[int, bytearray] = field(default_factory=dict)

    @property
    def chars(self) -> int:
        """Number of characters of the statement."""
        return sum(map(len, self.parts))

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return len(self.parts) - 1


def read_execute(statement: Statement, reader: Reader) -> list[Any]:
    """Decode the parameters of a COM_STMT_EXECUTE, after the statement's number. Raises Malformed."""
    reader.take(1 + 4)  # flags, iterations
    count = statement.parameters
    if not count:
        return []
    nulls = reader.take((count + 7) // 8)
    if reader.number(1):  # a client sends the types at the first execution, and when they have changed
        statement.types = [(reader.number(1), bool(reader.number(1) & 0x80)) for _ in range(count)]
    if len(statement.types) != count:
        raise Malformed("the types of parameters are not known")
    values: list[Any] = []
    for place, (kind, unsigned) in enumerate(statement.types):
        if place in statement.long_data:
            values.append(bytes(statement.long_data[place]))
        elif nulls[place >> 3] >> (place & 7) & 1:
            values.append(None)
        else:
            values.append(_parameter(reader, kind, unsigned))
    return values


_INTS: Final = {Type.TINY: 1, Type.SHORT: 2, Type.YEAR: 2, Type.LONG: 4, Type.INT24: 4, Type.LONGLONG: 8}


def _parameter(reader: Reader, kind: int, unsigned: bool) -> Any:
    """Decode one parameter by its type (`Type`)."""
    if kind in _INTS:
        return reader.number(_INTS[Type(kind)], signed=not unsigned)
    if kind == Type.FLOAT:
        return struct.unpack("<f", reader.take(4))[0]
    if kind == Type.DOUBLE:
        return struct.unpack("<d", reader.take(8))[0]
    if kind == Type.NULL:
        return None
    if kind in (Type.DATE, Type.DATETIME, Type.TIMESTAMP):
        return _time(Reader(reader.take(reader.number(1))))
    if kind == Type.TIME:
        return _duration(Reader(reader.take(reader.number(1))))
    data = reader.lenenc_bytes()
    if kind in (Type.TINY_BLOB, Type.BLOB, Type.MEDIUM_BLOB, Type.LONG_BLOB, Type.BIT):
        return data
    if kind == Type.NEWDECIMAL:
        try:
            return Decimal(data.decode("ascii"))
        except ArithmeticError:
            raise Malformed("a decimal number is expected") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _time(reader: Reader) -> datetime.datetime | None:
    """Decode a date or a time of day; None for MySQL's zero date."""
    if not reader.left:
        return None
    parts = [reader.number(2), reader.number(1), reader.number(1)]
    parts += [reader.number(1) for _ in range(3)] if reader.left else [0, 0, 0]
    parts.append(reader.number(4) if reader.left else 0)
    try:
        year, month, day, hour, minute, second, micros = parts
        return datetime.datetime(year, month, day, hour, minute, second, micros)
    except ValueError as wrong:
        raise Malformed(f"a time: {wrong}") from None


def _duration(reader: Reader) -> str:
    """Decode a duration (TIME) as text, in hours, minutes and seconds."""
    if not reader.left:
        return "00:00:00"
    sign = "-" if reader.number(1) else ""
    days, hours, minutes, seconds = reader.number(4), reader.number(1), reader.number(1), reader.number(1)
    micros = f".{reader.number(4):06}" if reader.left else ""
    return f"{sign}{days * 24 + hours:02}:{minutes:02}:{seconds:02}{micros}"


def literal(value: Any) -> str:
    """Return a parameter as an SQL literal."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        try:
            return literal(value.decode())
        except UnicodeDecodeError:
            return f"X'{value.hex()}'"
    if isinstance(value, datetime.datetime):
        return f"'{value.isoformat(' ', 'microseconds' if value.microsecond else 'seconds')}'"
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("'", "''")
        return f"'{text}'"
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else "NULL"
    return str(value)
