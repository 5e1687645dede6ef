"""Tests of the credentials of a Spark job: the source and the sink have the same options."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandq.errors import InvalidRequest, InvalidSetting
from sandq.spark.credentials import NO_CREDENTIALS
from sandq.spark.sink.options import parse_sink_options
from sandq.spark.source.options import parse_options

SIDES = [lambda options: parse_options({"subscribe": "t", **options}), parse_sink_options]


@pytest.mark.parametrize("parse", SIDES)
def test_a_token_is_handed_on_and_never_shown(parse: Any) -> None:
    options = parse({"token": "sandq_secret", "insecure": "true"})
    assert options.credentials.arguments() == {"token": "sandq_secret", "insecure": True}
    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert parse({}).credentials == NO_CREDENTIALS and NO_CREDENTIALS.arguments() == {}


def test_a_file_is_read_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("sandq_one\n")
    read = parse_sink_options({"token_file": str(file)}).credentials.arguments()["token"]
    assert read() == "sandq_one"
    file.write_text("sandq_two\n")
    assert read() == "sandq_two"
    file.unlink()
    with pytest.raises(InvalidRequest, match="token_file"):
        read()


@pytest.mark.parametrize("parse", SIDES)
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"token": "two words"}, "token"),
        ({"token": ""}, "token"),
        ({"token": "sandq_x", "token_file": "/x"}, "one of them"),
        ({"token_file": ""}, "token_file"),
        ({"insecure": "maybe"}, "insecure"),
    ],
)
def test_mistakes_are_named_without_the_token(parse: Any, options: Mapping[str, str], word: str) -> None:
    with pytest.raises(InvalidSetting, match=word) as refused:
        parse(options)
    assert "words" not in refused.value.message
