from __future__ import annotations

import pickle

import pytest

from sandq.model import errors
from sandq.model.errors import QuotaExceeded, SandqError, from_wire, to_wire

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, SandqError)]

CONTRACT = {
    ("INTERNAL", False, 500),
    ("INVALID", False, 400),
    ("INVALID_NAME", False, 400),
    ("INVALID_TIME", False, 400),
    ("TOO_LARGE", False, 413),
    ("INVALID_SETTING", False, 400),
    ("WRONG_PORT", False, 400),
    ("NOT_FOUND", False, 404),
    ("UNKNOWN_TOPIC", False, 404),
    ("UNKNOWN_PARTITION", False, 404),
    ("UNKNOWN_GROUP", False, 404),
    ("CONFLICT", False, 409),
    ("TOPIC_EXISTS", False, 409),
    ("LEASE_LOST", False, 409),
    ("DUPLICATE_KEY", False, 409),
    ("TOO_LATE", False, 409),
    ("ALREADY_STORED", False, 409),
    ("VERSION_CHANGED", False, 412),
    ("HISTORY_GONE", False, 410),
    ("PRODUCER_FENCED", False, 409),
    ("CONSUMER_FENCED", False, 409),
    ("RETRIABLE", True, 503),
    ("NOT_LEADER", True, 421),
    ("OVERLOADED", True, 503),
    ("THROTTLED", True, 429),
    ("QUOTA", True, 429),
    ("UNAVAILABLE", True, 503),
    ("OUT_OF_SEQUENCE", True, 503),
    ("TIMED_OUT", True, 504),
    ("CONNECTION_LOST", True, 503),
    ("STORAGE_FAILED", False, 507),
    ("DISK_FULL", True, 507),
    ("PROTOCOL", False, 400),
    ("WRONG_VERSION", False, 400),
    ("FRAME_TOO_LARGE", False, 413),
    ("UNAUTHENTICATED", False, 401),
    ("FORBIDDEN", False, 403),
    ("CLOSED", False, 500),
    ("FORKED", False, 500),
    ("STARTUP", False, 500),
    ("CONFIG", False, 500),
    ("CORRUPTION", False, 500),
    ("DATA_DIR_IN_USE", False, 500),
}


def test_codes_are_the_protocols() -> None:
    assert {(cls.code, cls.retriable, cls.http_status) for cls in ALL} == CONTRACT
    assert len(ALL) == len(CONTRACT)  # no code is used twice


def test_drawn_tree_matches_the_error_classes() -> None:
    drawing = (errors.__doc__ or "").split("On the wire")[0]
    lines = [line.split() for line in drawing.splitlines() if line.startswith("    ")]
    drawn = {
        (words[at], words[at + 1], int(words[at + 2]))
        for words in lines
        for at in [next(i for i, word in enumerate(words) if word[0].isalpha())]
    }
    assert drawn == {(cls.__name__, cls.code, cls.http_status) for cls in ALL}


@pytest.mark.parametrize("cls", ALL)
def test_over_the_wire_and_back(cls: type[SandqError]) -> None:
    error = from_wire(*to_wire(cls("it went wrong", partition=3, hint={"host": "b", "port": 7171})))
    assert type(error) is cls
    assert str(error) == error.message == "it went wrong"
    assert error.details == {"partition": 3, "hint": {"host": "b", "port": 7171}}
    assert (error.retriable, error.http_status) == (cls.retriable, cls.http_status)


def test_unknown_code_keeps_its_fields() -> None:
    error = from_wire("OF_LATER", "a gap", True, {"expected": 7})
    assert type(error) is SandqError
    assert to_wire(error) == ("OF_LATER", "a gap", True, {"expected": 7})
    assert SandqError.code == "INTERNAL"  # the class is unchanged
    assert not SandqError.retriable
    assert from_wire("NEW", "x", False, None).details == {}


def test_retriable_flag_is_taken_from_the_wire() -> None:
    error = from_wire("CONFLICT", "busy", True, {})
    assert isinstance(error, errors.Conflict)
    assert error.retriable
    assert not errors.Conflict.retriable


def test_a_peer_may_name_its_details_as_it_likes() -> None:
    details = {"message": 1, "self": 2, "code": 3, "": 4}
    assert from_wire("INVALID", "x", False, details).details == details
    assert from_wire("INVALID", "x", False, {5: 6}).details == {"5": 6}  # type: ignore[dict-item]


def test_an_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(from_wire("NOT_LEADER", "there", True, {"host": "b"})))
    assert isinstance(error, errors.NotLeader)
    assert to_wire(error) == ("NOT_LEADER", "there", True, {"host": "b"})


def test_copy_of_an_error_has_its_own_details_and_notes() -> None:
    first = QuotaExceeded("full", quota="stored_bytes")
    first.add_note("a note")
    first.http_status = 507
    copy, other = first.again(), first.again("no space")
    copy.details["topic"] = "t"
    copy.add_note("another note")
    assert (type(copy), str(copy), copy.args, copy.http_status) == (QuotaExceeded, "full", ("full",), 507)
    assert (str(other), other.args, other.details) == ("no space", ("no space",), {"quota": "stored_bytes"})
    assert first.details == {"quota": "stored_bytes"} and first.__notes__ == ["a note"]
