"""Tests that docs/checks.md and docs/checks/metadata.md name, for each field of each command, the check before the
log."""

from __future__ import annotations

import pytest

from sandq.metadata import commands as m
from sandq.model.errors import InvalidRequest
from sandq.partition import commands as c
from sandq.protocol.frames import Type
from sandq.protocol.request import REQUESTS
from tests.support.command_checks import METADATA, PARTITION, declared, fields_of, metadata_page, page
from tests.support.paths import ROOT
from tests.support.protocol_document import EXAMPLES, decode

ASKED = sorted(
    {asked for one in (*PARTITION.values(), *METADATA.values()) for check in one.values() for asked in check.of}
)


def test_every_field_of_every_command_has_a_row() -> None:
    assert {*PARTITION} == {*c._CLASSES.values()}
    assert {*METADATA} == {*m.Command.__args__}
    for command, checks in (*PARTITION.items(), *METADATA.items()):
        assert {*checks} == {*fields_of(command)}, command


def test_listed_paths_are_modules() -> None:
    for checks in (*PARTITION.values(), *METADATA.values()):
        for check in checks.values():
            assert check.place or check.of, check
            for word in check.place.replace(";", ",").split(","):
                name = word.split(":")[-1].strip()
                assert not name.endswith(".py") or (ROOT / "sandq" / name).exists(), name


def test_page_equals_the_generated_one() -> None:
    assert (ROOT / "docs" / "checks.md").read_text() == page(), (
        "run: python -m tests.support.command_checks > docs/checks.md"
    )
    assert (ROOT / "docs" / "checks" / "metadata.md").read_text() == metadata_page(), (
        "run: python -m tests.support.command_checks metadata > docs/checks/metadata.md"
    )


@pytest.mark.parametrize(("kind", "name"), ASKED, ids=lambda value: value.name if isinstance(value, Type) else value)
def test_request_refuses_invalid_field_values(kind: Type, name: str) -> None:
    field = declared(kind, name)
    at = [one.name for one in REQUESTS[kind].shape.fields].index(name) + 2
    frames = [frame for frame in map(decode, EXAMPLES) if frame[0] == kind and len(frame) > at]
    wrong: list[object] = [1.5, float("nan"), *([] if dict in field.kinds else [{1: 2}])]
    wrong += [] if field.optional else [None]
    if int in field.kinds:
        wrong += [field.minimum - 1, field.maximum + 1, True]
    wrong += [value for value in (0, "", b"", [], {}, False) if type(value) not in field.kinds]
    for frame in frames:
        REQUESTS[kind].parse([*frame])
        for value in wrong:
            with pytest.raises(InvalidRequest):
                REQUESTS[kind].parse([*frame[:at], value, *frame[at + 1 :]])
