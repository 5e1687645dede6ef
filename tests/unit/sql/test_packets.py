"""Tests of packets of MySQL's protocol: read packets are checked, and written packets suit clients."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sandq.sql.wire import packets, rows
from sandq.sql.wire.connection import parts_of
from sandq.sql.wire.packets import Can, Malformed, Reader, Statement, Type


@pytest.mark.parametrize("number", [0, 250, 251, 65535, 65536, 1 << 24, 1 << 40])
def test_lengths_come_back(number: int) -> None:
    assert Reader(packets.lenenc(number)).lenenc() == number


def hello(can: Can, rest: bytes) -> bytes:
    return int(can).to_bytes(4, "little") + bytes(4) + b"\x2d" + bytes(23) + rest


def test_hello_packet_is_parsed() -> None:
    can = Can.PROTOCOL_41 | Can.SECURE_CONNECTION | Can.CONNECT_WITH_DB | Can.PLUGIN_AUTH | Can.CONNECT_ATTRS
    rest = b"ada\0" + b"\x02ab" + b"z4\0" + b"mysql_native_password\0" + b"\x08\x03_os\x03lin"
    found = packets.read_hello(hello(can, rest))
    assert (found.user, found.auth, found.database, found.plugin) == ("ada", b"ab", "z4", "mysql_native_password")
    assert found.attributes == {"_os": "lin"}
    assert packets.read_hello(hello(can, b"")).wants_tls


def test_bytes_that_are_no_greeting_are_malformed() -> None:
    can = Can.PROTOCOL_41 | Can.SECURE_CONNECTION | Can.PLUGIN_AUTH_LENENC | Can.CONNECT_ATTRS | Can.CONNECT_WITH_DB
    whole = hello(can, b"ada\0" + b"\x02ab" + b"z4\0" + b"\x08\x03_os\x03lin")
    seed = 30
    chance = random.Random(seed)
    for _ in range(2000):
        data = bytearray(whole[: chance.randrange(len(whole) + 1)])
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            packets.read_hello(bytes(data))
        except Malformed:
            continue


def execute(kinds: list[tuple[int, int]], cells: bytes, nulls: int = 0) -> list[Any]:
    statement = Statement(1, ("",) * (len(kinds) + 1))
    head = bytes(5) + bytes((nulls,)) + b"\x01" + b"".join(bytes(kind) for kind in kinds)
    return packets.read_execute(statement, Reader(head + cells))


def test_parameters_are_read_by_their_types() -> None:
    assert execute([(Type.TINY, 0), (Type.LONGLONG, 0x80)], b"\xff" + b"\xff" * 8) == [-1, 2**64 - 1]
    assert execute([(Type.VAR_STRING, 0), (Type.BLOB, 0)], b"\x03ada\x02\xff\x00") == ["ada", b"\xff\x00"]
    assert execute([(Type.VAR_STRING, 0), (Type.LONG, 0)], b"\x01\x00\x00\x00", nulls=1) == [None, 1]
    when = b"\x0b" + b"\xee\x07\x01\x1f\x08\x00\x01" + b"\x40\x42\x0f\x00"
    with pytest.raises(Malformed):  # a million microseconds
        execute([(Type.DATETIME, 0)], when)
    assert execute([(Type.DATETIME, 0)], when[:-4] + (5000).to_bytes(4, "little")) == [
        datetime.datetime(2030, 1, 31, 8, 0, 1, 5000)
    ]
    assert execute([(Type.NEWDECIMAL, 0)], b"\x041.50") == [Decimal("1.50")]
    with pytest.raises(Malformed):
        execute([(Type.VAR_STRING, 0)], b"\x09ada")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        ("it's \\ 'x' -- ?", "'it''s \\\\ ''x'' -- ?'"),
        (b"\xff\x00", "X'ff00'"),
        (b"ada", "'ada'"),
        (5, "5"),
        (datetime.datetime(2030, 1, 31, 8), "'2030-01-31 08:00:00'"),
    ],
)
def test_parameters_become_literals(value: Any, text: str) -> None:
    assert packets.literal(value) == text


def test_parameters_are_found_where_they_are_none_of_a_text() -> None:
    text = "SELECT '?', `?`, \"?\" /* ? */ FROM t WHERE a = ? AND b IN (?,?) -- ?\n AND c = '\\'?'"
    parts = parts_of(text)
    assert len(parts) == 4
    assert "?".join(parts) == text


def test_rows_are_texts() -> None:
    table = pa.table(
        {
            "a": pa.array([1, None], pa.int64()),
            "b": pa.array(["x" * 300, ""]),
            "c": pa.array([datetime.datetime(2030, 1, 1, 0, 0, 0, 5000), None], pa.timestamp("us")),
            "d": pa.array([1.5, 2.0]),
            "e": pa.array([True, False]),
            "f": pa.array([b"\xff", None]),
        }
    )
    table = rows.shortened(table)
    (payloads,) = rows.text_rows(table)
    reader = Reader(payloads[0])
    found = [reader.lenenc_bytes() for _ in range(6)]
    assert found == [b"1", b"x" * 300, b"2030-01-01 00:00:00.005", b"1.5", b"1", b"\xff"]
    assert payloads[1] == b"\xfb\x00\xfb\x012\x010\xfb"
    kinds = [(one.type, one.charset) for one in rows.columns_of(table.schema)]
    assert kinds[1] == (Type.VAR_STRING, packets.UTF8MB4) and kinds[5] == (Type.BLOB, packets.BINARY)


def test_rows_of_prepared_statements_say_their_nulls_beforehand() -> None:
    table = pa.table({f"c{number}": pa.array([number if number % 2 else None], pa.int32()) for number in range(10)})
    ((payload,),) = rows.binary_rows(table)
    nulls = int.from_bytes(payload[1:3], "little")
    assert [bool(nulls >> place + 2 & 1) for place in range(10)] == [True, False] * 5
    assert payload[3:] == b"".join(number.to_bytes(4, "little") for number in range(1, 10, 2))


def test_repeated_cells_are_encoded_like_others() -> None:
    cells = ["a", None, "bb"] * 100
    few, many = pa.table({"a": cells[:3]}), pa.table({"a": cells})
    assert next(rows.text_rows(many)) == next(rows.text_rows(few)) * 100


def test_large_payloads_go_in_parts() -> None:
    data, following = rows.framed([b"a", b"x" * 0xFFFFFF, b"b"], 254)
    assert following == 2
    assert data[:5] == b"\x01\0\0\xfea"
    assert data[5:9] == b"\xff\xff\xff\xff"
    assert data[9 + 0xFFFFFF :] == b"\0\0\0\0" + b"\x01\0\0\x01b"


def test_rows_are_encoded_by_their_bytes_too() -> None:
    table = pa.table({"value": [b"x" * (rows.BYTES_AT_ONCE // 4)] * 10 + [b"y" * (2 * rows.BYTES_AT_ONCE)]})
    pieces = [len(payloads) for payloads in rows.text_rows(table)]
    assert sum(pieces) == 11 and max(pieces) <= 4
