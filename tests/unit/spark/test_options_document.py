"""Tests of docs/spark.md: the options of the source and the sink have the defaults of the code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sandq.errors import InvalidSetting
from sandq.model.times import format_duration
from sandq.protocol.requests import IGNORE, REJECT, REPLACE
from sandq.spark.sink import options as sink
from sandq.spark.source import options as source
from tests.support.documents import document

DOCUMENT = document("spark")
OF_WRITES, OF_READS = (
    re.findall(r"^\| (`\w[^|]*`) \| ([^|]*) \|[^|]*\|$", table.partition("\n\n")[0], re.MULTILINE)
    for table in re.split(r"^\| option \| default \| \|$", DOCUMENT, flags=re.MULTILINE)[1:3]
)
WORDS = {"ignore": IGNORE, "replace": REPLACE, "reject": REJECT}


def defaults_of(rows: list[tuple[str, str]]) -> dict[str, str]:
    """Return option -> default, for options with a default."""
    return {
        name: default
        for names, defaults in rows
        for name, default in zip(
            re.findall(r"`([\w.]+)`", names),
            [*(part.strip("` ") for part in defaults.split(", ")), *[""] * 3],
            strict=False,
        )
        if default and default != "random"
    }


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_defaults_of_reads_are_those_of_the_code() -> None:
    options = source.parse_options({"subscribe": "t"})
    assert defaults_of(OF_READS) == {
        "sandq.bootstrap.servers": ",".join(options.servers),
        "startingOffsets": options.starting.word,
        "endingOffsets": options.ending.word,
        "view": options.view,
        "includeHeaders": _word(options.extra.headers),
        "includeRaw": _word(options.extra.raw),
        "includeRank": _word(options.extra.rank),
        "pushFilters": _word(options.push_filters),
        "minOffsetsPerTrigger": _word(options.min_offsets_per_trigger),
        "maxTriggerDelay": format_duration(options.max_trigger_delay_ms),
        "minPartitions": _word(options.min_partitions),
        "failOnDataLoss": _word(options.fail_on_data_loss),
        "holdTtl": format_duration(options.hold_ttl_ms),
        "insecure": _word(options.credentials.insecure),
    }


def test_defaults_of_writes_are_those_of_the_code() -> None:
    options = sink.parse_sink_options({"topic": "t"})
    assert defaults_of(OF_WRITES).items() == {
        ("sandq.bootstrap.servers", ",".join(options.servers)),
        *(("onConflict", word) for word, value in WORDS.items() if value == options.on_conflict),
        ("onChangedRows", "again" if options.again else "error"),
        ("insecure", _word(options.credentials.insecure)),
    }


@pytest.mark.parametrize("name", [*sink.OPTIONS, *source.OPTIONS])
def test_every_option_is_in_the_document(name: str) -> None:
    assert f"`{name}`" in DOCUMENT


def test_table_of_kafka_options_is_that_of_the_code() -> None:
    """Options that the table calls the same exist. Options that it calls refused are refused."""
    table = DOCUMENT.partition("## Compared with Spark's connector for Kafka")[2].partition("\n## ")[0]
    same, _, refused = (part.split("\n| **")[0] for part in re.split(r"\| \*\*[^|]*\|.*\n", table)[1:])
    columns = {field for field in source.COLUMNS if f"{field}" in same}
    assert columns >= {"key", "value", "topic", "partition", "offset", "timestamp", "headers"}
    known = {*source.OPTIONS} & {*re.findall(r"`(\w+)`", same)}
    assert len(known) >= 13 and {"startingTimestamp", "maxTriggerDelay", "includeHeaders"} <= known
    names = [name for row in refused.splitlines() for name in re.findall(r"`([\w.]+)`", row.split("|")[1])]
    assert len(names) == 6
    for name in names:
        with pytest.raises(InvalidSetting, match=re.escape(name)):
            source.parse_options({"subscribe": "t", name: "1"})
