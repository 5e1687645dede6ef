"""Tests of docs/protocol.md, the specification: its examples decode as described, and it names every type and code."""

from __future__ import annotations

import ast
import re

import pytest

from sandq.model import errors
from sandq.model.batch import Batch
from sandq.protocol import requests_log
from sandq.protocol.fields import U32_MAX
from sandq.protocol.frames import Type, decode_error
from sandq.protocol.replies import Deliver, HelloReply, Offsets
from sandq.protocol.replies_messages import (
    DEAD_OUTCOMES,
    ForecastReply,
    JobRecord,
    MessageRecord,
    outcomes,
    page,
)
from sandq.protocol.request import REQUESTS
from tests.support.protocol_document import DOCUMENT, EXAMPLES, HEX, KINDS, decode, parsed

DECODED = dict(re.findall(r"```python ([a-z-]+)\n(.*?)```", DOCUMENT, re.DOTALL))


@pytest.mark.parametrize("name", HEX)
def test_examples_decode(name: str) -> None:
    assert decode(name) == ast.literal_eval(DECODED[name])


@pytest.mark.parametrize("name", EXAMPLES)
def test_documented_requests_equal_the_client_frames(name: str) -> None:
    assert parsed(name).frame(decode(name)[1]) == bytes.fromhex(HEX[name])


def test_every_request_has_an_example() -> None:
    assert {decode(name)[0] for name in EXAMPLES} == {*KINDS}


def cell_of(kind: Type) -> str:
    """Return the cell about a request's fields in the table of requests."""
    (cell,) = re.findall(rf"^\| {kind.value} {kind.name} \|(.*?)(?<!\\)\|", DOCUMENT, re.MULTILINE)
    return str(cell)


def row_of(kind: Type) -> list[str]:
    """Return the fields that the table of requests names, without the contents of arrays and parentheses."""
    cell = cell_of(kind)
    if REQUESTS[kind].defaults:  # these fields may be left out
        cell, last = cell.split("(, ")
        cell += ", " + last.strip().removesuffix(")")
    found = 1
    while found:
        cell, found = re.subn(r"\[[^][]*\]|\([^()]*\)", "", cell)
    return [text.strip() for text in cell.split(", ") if text.strip()]


def bounds_of(text: str) -> tuple[int, int] | None:
    found = re.search(r"([\d,]+)\.\.([\d,]+)( MiB)?", text)
    if found is None:
        return None
    least, most = (int(number.replace(",", "")) for number in found.groups()[:2])
    return least, most << 20 if found[3] else most


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_table_names_the_fields_of_each_request(kind: Type) -> None:
    texts, fields = row_of(kind), REQUESTS[kind].shape.fields
    assert len(texts) == len(fields)
    for text, field in zip(texts, fields, strict=True):
        assert text.startswith(field.name.replace("_", " ")), text
        assert ("nil" in text) == field.optional, text
        assert ("u32" in text) == (field.maximum == U32_MAX), text
        assert ("bool" in text) == (bool in field.kinds), text
        assert ("map" in text) == (dict in field.kinds), text
        assert bounds_of(text) in (None, (field.minimum, field.maximum)), text


def test_replies_and_pushes() -> None:
    assert HelloReply.parse(decode("hello-reply")).node_id == "node1"
    assert Offsets.parse(decode("produce-reply")).messages == 1
    assert type(decode_error(decode("error"))) is errors.NotLeader
    assert Offsets.parse(decode("produce-conflict")).conflicts == {1: "leased"}
    (piece,) = requests_log.FetchReply.parse(decode("fetch-reply")).pieces
    assert requests_log.MeasureReply.parse(decode("measure-reply")).messages == 1
    assert Batch.parse(piece.batch).values() == [b"hi"]
    assert MessageRecord.from_map(decode("get-reply")[2]).unique_key == b"order-7"
    assert page(decode("list-reply"), MessageRecord.from_map)[0] == []
    assert [outcome.verdict for outcome in outcomes(decode("move-reply"), 2)] == ["moved", "too_late"]
    assert [outcome.verdict for outcome in outcomes(decode("cancel-reply"), 2)] == ["cancelled", "not_found"]
    letters = outcomes(decode("dead-redrive-reply"), 2, DEAD_OUTCOMES)
    assert [outcome.verdict for outcome in letters] == ["redriven", "not_dead"]
    assert JobRecord.parse(decode("job-reply")).matched == 70
    forecast = ForecastReply.parse(decode("forecast-reply"))
    assert (forecast.later, forecast.scheduled, forecast.is_complete) == (3, [(1_800_000_180_000, 2)], True)
    deliver = Deliver.parse(decode("deliver"))
    assert Batch.parse(deliver.batch).values() == [b"hi"] and deliver.last


def test_every_type_and_code_is_named() -> None:
    for kind in KINDS:
        assert re.search(rf"\b{kind.value} {kind.name}\b", DOCUMENT), kind.name
    codes = {cls.code for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.SandqError)}
    local = {"STARTUP", "CONFIG", "CORRUPTION", "DATA_DIR_IN_USE", "CONNECTION_LOST", "RETRIABLE", "FORKED"}
    assert [code for code in sorted(codes - local) if f"`{code}`" not in DOCUMENT] == []
