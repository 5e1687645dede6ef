"""Tests of the sink's options and of the names of its writers: their meaning and their errors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from sandq.errors import InvalidRequest, InvalidSetting
from sandq.protocol.requests import IGNORE, REJECT, REPLACE
from sandq.spark.credentials import OPTIONS as CREDENTIALS
from sandq.spark.sink.identity import BATCH_ID, QUERY_ID, Identity, identity_in_stream, name_of_batch
from sandq.spark.sink.options import OPTIONS, SinkOptions, parse_sink_options


def test_missing_options_have_defaults() -> None:
    found = parse_sink_options({})
    assert found == SinkOptions(("127.0.0.1:7170",), None, IGNORE, None, False)
    found.check_stream()


def test_options_are_parsed_in_any_case() -> None:
    options = {
        "sandq.bootstrap.servers": "a:1, b:2",
        "topic": " orders ",
        "onConflict": "Replace",
        "writeId": "job 2030-01-01",
        "onChangedRows": "AGAIN",
    }
    expected = SinkOptions(("a:1", "b:2"), "orders", REPLACE, "job 2030-01-01", True)
    assert parse_sink_options(options) == expected
    assert parse_sink_options({name.lower(): text for name, text in options.items()}) == expected
    assert parse_sink_options({"onConflict": "reject"}).on_conflict == REJECT
    assert {*options, *CREDENTIALS} == set(OPTIONS), "each option has a test"
    assert pickle.loads(pickle.dumps(expected)) == expected


def test_options_that_spark_takes_from_a_stream() -> None:
    assert parse_sink_options({"checkpointLocation": "/tmp/c", "queryName": "q"}) == SinkOptions()
    with pytest.raises(InvalidSetting, match="writeId: it is for batches"):
        parse_sink_options({"writeId": "w"}).check_stream()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topics": "a"}, "topics: no such option; did you mean topic?"),
        ({"sandq.topic": "a"}, "sandq.topic: no such option; did you mean topic?"),
        ({"servers": "a"}, "did you mean sandq.bootstrap.servers?"),
        ({"kafka.bootstrap.servers": "a"}, "an option of Kafka's sink; the brokers are named with sandq.bootstrap"),
        ({"path": "/tmp/x"}, "path: nothing is written to a path"),
        ({"zzz": "1"}, f"zzz: no such option; there are {', '.join(OPTIONS)}"),
        ({"x" * 200: "1"}, "x" * 80 + "...: no such option"),
        ({"topic": "no topic"}, "topic: "),
        ({"topic": ""}, "topic: "),
        ({"sandq.bootstrap.servers": "a:b"}, "sandq.bootstrap.servers: 'a:b' is not a server"),
        ({"onConflict": "explode"}, "onConflict: one of ignore, replace, reject is expected, not 'explode'"),
        ({"onConflict": "debounce"}, "onConflict: one of ignore, replace, reject is expected, not 'debounce'"),
        ({"onConflict": "throttle"}, "onConflict: one of ignore, replace, reject is expected, not 'throttle'"),
        ({"onChangedRows": "maybe"}, "onChangedRows: one of error, again is expected, not 'maybe'"),
        ({"writeId": ""}, "writeId: 1..249 characters are expected, not 0"),
        ({"writeId": "x" * 250}, "not 250"),
        ({"topic": "a", "TOPIC": "b"}, "topic: it is given twice"),
    ],
)
def test_a_mistake_is_named(options: Mapping[str, str], says: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_sink_options(options)
    assert says in refused.value.message and refused.value.message.startswith("sandq sink: ")


def test_every_mistake_is_reported() -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_sink_options({"topic": "a b", "onConflict": "x", "zzz": "1"})
    assert all(f"{name}: " in refused.value.message for name in ("topic", "onConflict", "zzz"))


# -- names of writers -------------------------------------------------------------------------------------------------


def test_ids_of_producers_never_change() -> None:
    """PERSISTED: other versions find begun writes by these names."""
    assert Identity("query\0abc", 0).producer_id == PRODUCER_IDS[0]
    assert Identity("query\0abc", 7, epoch=9).producer_id == PRODUCER_IDS[1]
    assert Identity(name_of_batch("w"), 0, resent=True).producer_id == PRODUCER_IDS[2]


PRODUCER_IDS = (2937778489937150894, 7155536327258627871, 1523484722103211670)


def test_every_task_is_a_producer_of_its_own() -> None:
    names = [name_of_batch("w"), "query\0w", name_of_batch("w\0001"), name_of_batch(None), name_of_batch(None)]
    ids = {Identity(name, partition).producer_id for name in names for partition in range(200)}
    assert len(ids) == len(names) * 200
    assert all(0 < producer_id < 2**63 for producer_id in ids)
    one = Identity("query\0w", 3, 8, resent=True)
    other = one.renewed()
    assert (other.partition, other.epoch, other.resent) == (3, 1, False)
    assert len({one.producer_id, other.producer_id, one.renewed().producer_id}) == 3


def test_a_task_of_a_stream() -> None:
    properties = {QUERY_ID: "5f0c", BATCH_ID: "41"}
    assert identity_in_stream(2, properties.get) == Identity("query\0005f0c", 2, 42, resent=True)
    assert identity_in_stream(2, {**properties, BATCH_ID: "0"}.get).epoch == 1


@pytest.mark.parametrize(
    "wrong", [{QUERY_ID: None}, {QUERY_ID: ""}, {BATCH_ID: None}, {BATCH_ID: "-1"}, {BATCH_ID: "x"}]
)
def test_spark_without_a_writer_identity(wrong: dict[str, str | None]) -> None:
    properties = {QUERY_ID: "5f0c", BATCH_ID: "41", **wrong}
    with pytest.raises(InvalidRequest, match=r"sql\.streaming\.queryId.*cannot be used for exactly-once streams"):
        identity_in_stream(0, properties.get)
    with pytest.raises(InvalidRequest, match="larger than the largest number"):
        identity_in_stream(0, {QUERY_ID: "a", BATCH_ID: str(2**32)}.get)
