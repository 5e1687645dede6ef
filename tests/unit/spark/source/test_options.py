"""Tests of the source's options: their meaning and their errors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from sandq.errors import InvalidSetting
from sandq.model import offsets
from sandq.spark.source.options import OPTIONS, Bound, Extra, SourceOptions, Topics, parse_options

OFFSET = offsets.to_text(offsets.pack(1_700_000_000_000, 5, 6, 1))


def parsed(**options: str) -> SourceOptions:
    return parse_options({"subscribe": "orders", **options})


def test_missing_options_have_defaults() -> None:
    found = parsed()
    assert found == SourceOptions(topics=Topics(("orders",)), given=frozenset({"subscribe"}))
    assert found.servers == ("127.0.0.1:7170",)
    assert (found.starting, found.ending) == (Bound("earliest"), Bound("latest"))
    assert (found.min_partitions, found.max_offsets_per_trigger) == (1, None)
    assert (found.fail_on_data_loss, found.extra) == (True, Extra())
    found.check_batch()
    found.check_stream()


def test_options_are_parsed_in_any_case() -> None:
    options = {
        "sandq.bootstrap.servers": "a:1, b:2",
        "subscribe": " orders, payments ,orders",
        "startingOffsets": f'{{"orders": {{"1": "{OFFSET.lower()}", "2": "latest"}}}}',
        "maxOffsetsPerTrigger": "5000",
        "minPartitions": "7",
        "failOnDataLoss": "FALSE",
        "includeHeaders": "True",
        "INCLUDERAW": "true",
        "includeRank": "true",
    }
    for given in (options, {name.lower(): text for name, text in options.items()}):
        found = parse_options(given)
        assert found.servers == ("a:1", "b:2")
        assert found.topics.names == ("orders", "payments")
        assert [found.starting.of("orders", partition) for partition in (0, 1, 2)] == ["earliest", OFFSET, "latest"]
        assert found.starting.of("payments", 1) == "earliest"
        assert (found.max_offsets_per_trigger, found.min_partitions) == (5000, 7)
        assert (found.fail_on_data_loss, found.extra) == (False, Extra(headers=True, raw=True, rank=True))
        assert pickle.loads(pickle.dumps(found)) == found, "the options are sent to workers"


def test_topic_options_select_partitions() -> None:
    assert parsed().topics.wants("orders", 9)
    assert not parsed().topics.wants("orders2", 9)
    pattern = parse_options({"subscribePattern": "ord.*"}).topics
    assert pattern.wants("orders", 0)
    assert not pattern.wants("my-orders", 0), "the whole name must match"
    assigned = parse_options({"assign": '{"orders": [2, 0], "payments": [1]}'}).topics
    assert assigned.assigned == {"orders": (0, 2), "payments": (1,)}
    assert [assigned.wants("orders", partition) for partition in (0, 1, 2)] == [True, False, True]
    assert not assigned.wants("others", 0)


def test_instants() -> None:
    assert parsed(startingTimestamp="1700000000000").starting.of("orders", 0) == 1_700_000_000_000
    assert parsed(startingTimestamp="2030-01-01T01:00:00+01:00").starting.instant_ms == 1_893_456_000_000
    assert parsed(endingTimestamp="2030-01-01T00:00:00Z").ending.of("orders", 0) == 1_893_456_000_000


def test_instants_by_partition() -> None:
    text = '{"orders": {"0": 1700000000000, "2": "2030-01-01T00:00:00Z"}}'
    found = parsed(startingOffsetsByTimestamp=text)
    starts = [found.starting.of("orders", partition) for partition in (0, 1, 2)]
    assert starts == [1_700_000_000_000, "earliest", 1_893_456_000_000]
    found.check_stream()
    found = parsed(endingOffsetsByTimestamp=text)
    assert [found.ending.of(topic, 0) for topic in ("orders", "others")] == [1_700_000_000_000, "latest"]
    found.check_batch()
    with pytest.raises(InvalidSetting, match="endingOffsetsByTimestamp: a stream has no end"):
        found.check_stream()


def test_columns() -> None:
    assert parsed(columns=" value, key,value").extra == Extra(only=("key", "value"))
    assert parsed(columns="ttl_ms,headers").extra == Extra(True, True, False, ("headers", "ttl_ms"))
    assert parsed(columns="tenant").extra == Extra(False, False, True, ("tenant",))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["subscribe, subscribePattern and assign", "none of them"]),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, ["subscribe and assign are given"]),
        ({"subscribe": "a b"}, ["subscribe", "topic name 'a b'"]),
        ({"subscribe": "a,,b"}, ["subscribe", "topic name ''"]),
        ({"subscribePattern": "("}, ["subscribePattern", "regular expression"]),
        ({"subscribePattern": ""}, ["empty pattern"]),
        ({"assign": "orders"}, ["assign", '{"orders": [0, 1]}']),
        ({"assign": "[" * 100_000}, ["assign", "JSON"]),
        ({"assign": '{"a": []}'}, ["a list of partitions"]),
        ({"assign": '{"a": ["0"]}'}, ["partitions are numbers"]),
        ({"assign": '{"a": [true]}'}, ["partitions are numbers"]),
        ({"assign": '{"a": [4096]}'}, ["4096", "no partition"]),
        ({"assign": '{"a": [0], "a": [1]}'}, ["a name twice"]),
        ({"startingOffsets": "newest"}, ["startingOffsets", "'newest'"]),
        ({"startingOffsets": '{"a": "latest"}'}, ["offsets by partition"]),
        ({"startingOffsets": '{"a": {"x": "latest"}}'}, ["'x' is no partition"]),
        ({"startingOffsets": '{"a": {"01": "latest"}}'}, ["'01' is no partition"]),
        ({"startingOffsets": '{"a": {"0": 5}}'}, ["a, partition 0", "is not an offset"]),
        ({"startingOffsets": '{"a": {"0": "5"}}'}, ["a, partition 0", "is not an offset"]),
        ({"endingOffsets": "earliest"}, ["nothing ends at 'earliest'"]),
        ({"endingOffsets": '{"a": {"0": "earliest"}}'}, ["nothing ends at 'earliest'"]),
        ({"startingOffsets": "latest", "startingTimestamp": "2030-01-01T00:00:00Z"}, ["one of them is enough"]),
        ({"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"a": {"0": 0}}'}, ["one of them is enough"]),
        ({"startingOffsetsByTimestamp": "1700000000000"}, ["startingOffsetsByTimestamp", "JSON like"]),
        ({"startingOffsetsByTimestamp": '{"a": {"0": 1700000000}}'}, ["a, partition 0", "seconds"]),
        ({"startingOffsetsByTimestamp": '{"a": 1700000000000}'}, ["times by partition"]),
        ({"view": "pending", "holdName": "h"}, ["view 'pending': that is for batches, and holdName for streams"]),
        ({"endingOffsets": "latest", "maxTriggerDelay": "1m"}, ["endingOffsets", "maxTriggerDelay for streams"]),
        ({"columns": "key,valu"}, ["columns: there is no column 'valu'; there are key, value"]),
        ({"columns": "key", "includeRaw": "true"}, ["includeRaw: the option columns already selects"]),
        ({"pushFilters": "true", "holdTtl": "1h"}, ["pushFilters", "holdTtl for streams"]),
        ({"startingTimestamp": "1700000000"}, ["startingTimestamp", "seconds"]),
        ({"startingTimestamp": "tomorrow"}, ["startingTimestamp", "'tomorrow'"]),
        ({"maxOffsetsPerTrigger": "0"}, ["maxOffsetsPerTrigger", "1.."]),
        ({"maxOffsetsPerTrigger": "1e6"}, ["maxOffsetsPerTrigger", "'1e6'"]),
        ({"minPartitions": "20000"}, ["minPartitions", "1..10000"]),
        ({"failOnDataLoss": "yes"}, ["failOnDataLoss", "true or false"]),
        ({"sandq.bootstrap.servers": "a:b"}, ["sandq.bootstrap.servers", "'a:b'"]),
        ({"sandq.bootstrap.server": "a"}, ["did you mean sandq.bootstrap.servers?"]),
        ({"kafka.bootstrap.servers": "a"}, ["sandq.bootstrap.servers", "Kafka"]),
        ({"subscibe": "a"}, ["did you mean subscribe?"]),
        (
            {"startingOffsets": '{"order": {"0": "latest"}}'},
            ["topic 'order', partition 0 is not one of the partitions"],
        ),
        (
            {"assign": '{"a": [0]}', "endingOffsetsByTimestamp": '{"a": {"1": "2030-01-01T00:00:00Z"}}'},
            ["endingOffsetsByTimestamp: topic 'a', partition 1 is not one of the partitions that are read: a [0]"],
        ),
        ({"startingOffset": "earliest"}, ["did you mean startingOffsets?"]),
        ({"sandq.minPartitions": "3"}, ["did you mean minPartitions?"]),
        ({"servers": "a"}, ["did you mean sandq.bootstrap.servers?"]),
        ({"path": "/tmp"}, ["path", "subscribe"]),
        ({"hue": "red"}, ["hue: no such option", *OPTIONS]),
        ({"includeHeaders": "true", "includeheaders": "true"}, ["includeHeaders", "twice"]),
        ({"minPartitions": "x", "failOnDataLoss": "y", "hue": "z"}, ["minPartitions", "failOnDataLoss", "hue"]),
    ],
)
def test_a_mistake_is_named(options: Mapping[str, str], words: list[str]) -> None:
    known = {"subscribe", "subscribePattern", "assign"} & options.keys()
    given = dict(options) if known or not options else {"subscribe": "orders", **options}
    with pytest.raises(InvalidSetting) as caught:
        parse_options(given)
    for word in words:
        assert word in caught.value.message
    assert len(caught.value.message) < 700


def test_options_of_streams_and_batches_are_checked() -> None:
    for options in (
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": {"0": "latest"}}'},
        {"maxOffsetsPerTrigger": "5"},
    ):
        found = parsed(**options)
        found.check_stream()
        with pytest.raises(InvalidSetting, match=next(iter(options))):
            found.check_batch()
    for options in ({"endingOffsets": "latest"}, {"endingTimestamp": "2030-01-01T00:00:00Z"}):
        found = parsed(**options)
        found.check_batch()
        with pytest.raises(InvalidSetting, match="a stream has no end"):
            found.check_stream()
    with pytest.raises(InvalidSetting, match="pushFilters: Spark pushes filters into batches only"):
        parsed(pushFilters="true").check_stream()
    both = parsed(startingOffsets="latest", maxOffsetsPerTrigger="5")
    with pytest.raises(InvalidSetting, match=r"startingOffsets.*maxOffsetsPerTrigger"):
        both.check_batch()
