"""docs/protocol.md is the specification: its examples decode to what they say, and it names every type and code."""

from __future__ import annotations

import ast
import re

import pytest

from sandq.model import errors
from sandq.model.batch import Batch
from sandq.protocol import requests, requests_admin, requests_log
from sandq.protocol import requests_messages as messages
from sandq.protocol.frames import Frame, FrameReader, Type, decode_error
from sandq.protocol.replies import Deliver, HelloReply, Offsets
from sandq.protocol.replies_messages import (
    ForecastReply,
    JobRecord,
    MessageRecord,
    outcomes,
    page,
)
from tests.support.paths import ROOT

DOCUMENT = (ROOT / "docs" / "protocol.md").read_text()
HEX = dict(re.findall(r"```hex ([a-z-]+)\n(.*?)```", DOCUMENT, re.DOTALL))
DECODED = dict(re.findall(r"```python ([a-z-]+)\n(.*?)```", DOCUMENT, re.DOTALL))


def decode(name: str) -> Frame:
    (frame,) = FrameReader().feed(bytes.fromhex(HEX[name]))
    return frame


@pytest.mark.parametrize("name", HEX)
def test_examples_decode(name: str) -> None:
    assert decode(name) == ast.literal_eval(DECODED[name])


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("hello", requests.Hello),
        ("produce", requests.Produce),
        ("subscribe", requests.Subscribe),
        ("ack", requests.Ack),
        ("ack-bitmap", requests.Ack),
        ("credit", requests.Credit),
        ("subscribe-instant", requests.Subscribe),
        ("fetch", requests_log.Fetch),
        ("get", messages.Get),
        ("list", messages.List),
        ("move", messages.Move),
        ("cancel", messages.Cancel),
        ("why", messages.Why),
        ("job-start", messages.JobStart),
        ("job-status", messages.JobStatus),
        ("job-stop", messages.JobStop),
        ("forecast", messages.Forecast),
        ("topic-update", requests_admin.TopicUpdate),
        ("group-seek", requests_admin.GroupSeek),
        ("group-update", requests_admin.GroupUpdate),
        ("group-delete", requests_admin.GroupDelete),
        ("dead-list", requests_admin.DeadList),
        ("hold", requests_admin.Hold),
        ("measure", requests_log.Measure),
        ("hold-release", requests_admin.Hold),
        ("node-change", requests_admin.NodeChange),
        ("transfer", requests_admin.Transfer),
    ],
)
def test_requests_are_what_the_client_sends(name: str, cls: type[requests.Produce]) -> None:
    frame = decode(name)
    assert cls.parse(frame).frame(frame[1]) == bytes.fromhex(HEX[name])


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
    assert JobRecord.parse(decode("job-reply")).matched == 70
    assert ForecastReply.parse(decode("forecast-reply")).later == 3
    deliver = Deliver.parse(decode("deliver"))
    assert Batch.parse(deliver.batch).values() == [b"hi"] and deliver.last


def test_every_type_and_code_is_named() -> None:
    for kind in Type:
        if kind not in (Type.REPLY, Type.ERROR, Type.DELIVER):
            assert re.search(rf"\b{kind.value} {kind.name}\b", DOCUMENT), kind.name
    codes = {cls.code for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.SandqError)}
    local = {"STARTUP", "CONFIG", "CORRUPTION", "DATA_DIR_IN_USE", "CONNECTION_LOST", "RETRIABLE", "FORKED"}
    assert [code for code in sorted(codes - local) if f"`{code}`" not in DOCUMENT] == []
