"""Tests of `sandq wal dump`: it shows every record with its content and damage, and changes nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandq.cli import main
from sandq.metadata import commands as m
from sandq.model.errors import Corruption
from sandq.partition import commands as c
from sandq.raft.skip import Skip
from sandq.raft.wire import SKIP
from sandq.storage.wal import Kind
from sandq.storage.wal_recovery import recover
from sandq.tools.read_only import ReadOnlyFiles
from sandq.tools.wal.decode import command_record, payload_record
from tests.support.registered import register_node
from tests.support.storage.log_bed import (
    GROUP,
    NOW_MS,
    append,
    entry,
    flip,
    members,
    metadata,
    no_op,
    picture,
    segment,
    write_log,
)

OFFSET = bytes(range(16))
COMMANDS: list[c.Command] = [
    append(b"one", b"two"),
    c.Lease("g", 5, [c.Grant("worker", 10, 30_000)]),
    c.Ack([(65_536, None), (65_537, [[OFFSET, 3]])]),
    c.Nack([(65_536, None, 100, "no \x1b[31mstock")]),
    c.Extend([(65_536, 1000)]),
    c.Expire(),
    c.Release("g", "worker"),
    c.Release("g", "worker", 7),
    c.Reclaim("g", "worker", 7, 30_000),
    c.OpenGroup("g", "earliest"),
    c.Upkeep(),
    c.Clock(),
    c.Configure({"lease_ms": 1}),
    c.Cancel([(c.TARGET_ID, OFFSET), (c.TARGET_KEY, b"call-ada")]),
    c.Move([((c.TARGET_ID, OFFSET), 5, True)]),
    c.Seek("g", OFFSET),
    c.DropGroup("g"),
    c.ConfigureGroup("g", {"max_attempts": 3}),
    c.PauseGroup("g", True),
    c.RedriveDead("g", [OFFSET]),
    c.PurgeDead("g", [OFFSET]),
    c.ShareLimit("g", 1, [(1, 0, 2, 0)], [(1, 5, 1)]),
    c.AllowLimit([("g", 1, 1, 7, 5, 1, 0, None, None)]),
    c.Touch(["g"]),
    c.StartJob(OFFSET, "cancel", {"key_prefix": b"\xff\xfe"}),
    c.StopJob(OFFSET),
]
METADATA: list[m.Command] = [
    register_node("n1", "store", {"client": "h:1"}),
    m.CreateTopic("orders", "timer", 1, [["n1"]], {}),
    m.UpdateTopic("orders", {"lease_ms": 5}, 1, 1, []),
    m.DeleteTopic("orders"),
    m.FormCluster("uuid"),
    m.MarkNode("n1", 5),
    m.ChangeStanding("n1", "draining"),
    m.Assign(1, 0, ["n1"]),
    m.Settle(1, 1, True),
    m.Balance(["n1"]),
    m.RemoveNode("n1", "store"),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write two groups with every command in one segment."""
    batches = [
        [members(0), no_op(1, 0), *(metadata(at, one) for at, one in enumerate(METADATA, 2))],
        [members(), no_op(1)],
        *([entry(at, one)] for at, one in enumerate(COMMANDS, 2)),
        [entry(len(COMMANDS) + 2, append(b"x"), c.Expire(), c.Ack([(1, None)]))],
    ]
    return write_log(tmp_path / "data", batches)


def dump(*args: object) -> Result:
    return CliRunner().invoke(main, ["wal", "dump", *map(str, args)])


def rows(*args: object, code: int = 0) -> list[dict[str, Any]]:
    result = dump(*args, "--json")
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def commands(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [command for row in found for command in row.get("commands", ())]


def test_every_command_is_decoded(log: Path) -> None:
    before = picture(log)
    found = rows(log, "--group", GROUP)
    assert {row["crc"] for row in found} == {"ok"} and not any("error" in row for row in found)
    named = commands(found)
    assert {row["command"] for row in named} >= {
        *("append", "lease", "ack", "nack", "extend", "expire", "release", "open_group", "upkeep", "clock"),
        *("configure", "cancel", "move", "seek", "drop_group", "configure_group", "pause_group", "touch"),
        *("start_job", "stop_job", "reclaim"),
    }
    first = named[0]
    assert (first["messages"], first["producer_id"], first["sequence"]) == (2, 7, 2) and "values" not in first
    (grant,) = named[1]["grants"]
    assert grant == {"consumer": "worker", "limit": 10, "lease_ms": 30_000, "epoch": 0, "handlers": 0}
    (cancel,) = [row for row in named if row["command"] == "cancel"]
    assert cancel["targets"][1] == [1, "<8 bytes>"] and len(cancel["targets"][0][1]) == 26
    (job,) = [row for row in named if row["command"] == "start_job"]
    assert job["job_id"] == OFFSET.hex() and job["arguments"] == {"key_prefix": "<2 bytes>"}
    assert [row["command"] for row in found[-1]["commands"]] == ["append", "expire", "ack"]
    meta = commands(rows(log, "--group", 0))
    assert [row["command"] for row in meta] == [
        *("register_node", "create_topic", "update_topic", "delete_topic", "form_cluster", "mark_node"),
        *("change_standing", "assign", "settle", "balance", "remove_node"),
    ]
    assert picture(log) == before, "nothing is changed"


def test_values_are_shown_when_they_are_asked_for(log: Path) -> None:
    named = commands(rows(log, "--values"))
    assert next(row for row in named if row["command"] == "append")["values"] == ["one", "two"]
    assert next(row for row in named if row["command"] == "cancel")["targets"][1] == [1, "call-ada"]
    arguments = next(row for row in named if row["command"] == "start_job")["arguments"]
    assert arguments == {"key_prefix": "base64://4="}
    assert "call-ada" not in dump(log).output and "call-ada" in dump(log, "--values").output


def test_text_output_for_people(log: Path) -> None:
    result = dump(log)
    assert result.exit_code == 0 and "\x1b" not in result.stdout, "an error with an escape sequence is escaped"
    lines = result.stdout.splitlines()
    assert lines[0] == f"{segment(log)}:"
    assert "hard_state group 0" in result.stdout and "voters=[n1#1]" in result.stdout and "entry=no-op" in result.stdout
    (line,) = [line for line in lines if "append messages=2" in line]
    assert f"group {GROUP} index 2 term 1" in line and "crc ok" in line and "(2027-01-15T08:00:00.000Z)" in line
    assert r"no \x1b[31mstock" in result.stdout
    assert result.stderr.endswith("in 1 segment; no damage\n")


def test_records_are_chosen_by_group_and_index(log: Path) -> None:
    assert [row["index"] for row in rows(log, "--group", GROUP, "--from", 4, "--to", 6)] == [4, 5, 6]
    assert {row["index"] for row in rows(log, "--from", 20)} == {*range(20, 29)}
    assert rows(log, "--group", 99) == []
    assert "shown" in dump(log, "--group", 99).stderr


def test_a_torn_end_is_no_damage(log: Path, tmp_path: Path) -> None:
    last = rows(log)[-1]
    assert last["kind"] == "seal"
    path = segment(log)
    flip(path, last["offset"] + 10)
    found = rows(log)
    assert found[-1]["type"] == "torn" and found[-1]["offset"] == last["offset"]
    assert f"{last['offset']}  TORN" in dump(log).stdout and "1 torn end" in dump(log).stderr


@pytest.mark.parametrize("part", ["magic", "header", "payload"])
def test_damage_is_reported_and_later_records_are_read(log: Path, part: str) -> None:
    before = rows(log)
    target = before[10]
    flip(segment(log), target["offset"] + {"magic": 0, "header": 20, "payload": 48}[part])
    found = rows(log, code=1)
    (damage,) = [row for row in found if row["type"] == "damage"]
    assert (damage["offset"], damage["end"]) == (target["offset"], before[11]["offset"])
    assert [row for row in found if row["type"] == "record"] == before[:10] + before[11:]
    result = dump(log)
    assert result.exit_code == 1 and "DAMAGE" in result.stdout and "1 damaged place" in result.stderr


def test_several_damages_are_reported(log: Path) -> None:
    before = rows(log)
    for at in (8, 9, 14):
        flip(segment(log), before[at]["offset"] + 48)
    found = rows(log, code=1)
    assert [row["offset"] for row in found if row["type"] == "damage"] == [before[8]["offset"], before[14]["offset"]]
    assert len([row for row in found if row["type"] == "record"]) == len(before) - 3


def test_damage_within_a_batch_does_not_hide_its_rest(tmp_path: Path) -> None:
    data = write_log(tmp_path / "data", [[members(), *(entry(at, append(b"v")) for at in range(1, 6))]])
    before = rows(data)
    middle = next(row for row in before if row["index"] == 3)
    flip(segment(data), middle["offset"] + 48)
    found = rows(data, code=1)
    assert [row["index"] for row in found if row.get("kind") == "entry"] == [1, 2, 4, 5]


def test_a_header_that_is_damaged(log: Path) -> None:
    count = len(rows(log))
    flip(segment(log), 20)
    found = rows(log, code=1)
    assert (found[0]["type"], found[0]["offset"], "checksum" in found[0]["why"]) == ("damage", 0, True)
    assert len([row for row in found if row["type"] == "record"]) == count


def test_unreadable_entry_is_reported(tmp_path: Path) -> None:
    bad = (Kind.ENTRY, GROUP, 2, 1, b"\0\xc1")
    data = write_log(tmp_path / "data", [[members(), no_op(1)], [bad], [(Kind.ENTRY, GROUP, 3, 1, b"\x09")]])
    found = rows(data, code=1)
    assert ["error" in row for row in found if row.get("index", 0) > 1] == [True, True]
    assert "ERROR: a partition entry cannot be read" in dump(data).stdout


def test_several_segments(tmp_path: Path) -> None:
    batches = [[members(), no_op(1)], *([entry(at, append(b"x" * 4000))] for at in range(2, 60))]
    data = write_log(tmp_path / "data", batches)
    numbers = {row["segment"] for row in rows(data)}
    assert len(numbers) > 2
    entries = [row["index"] for row in rows(data) if row["kind"] == "entry"]
    assert entries == [*range(1, 60)]
    assert rows(data / "wal") == rows(data) == rows(*sorted((data / "wal").iterdir()))
    assert {row["segment"] for row in rows(segment(data, 2))} == {2}
    # The next segment records the end of this segment, so a missing record there is damage.
    last = [row for row in rows(data) if row["segment"] == 1][-1]
    path = segment(data, 1)
    content = bytearray(path.read_bytes())
    content[last["offset"] : last["offset"] + last["size"]] = bytes(last["size"])
    path.write_bytes(content)
    (damage,) = [row for row in rows(data, code=1) if row["type"] == "damage"]
    assert (damage["segment"], damage["offset"]) == (1, last["offset"])
    segment(data, 2).unlink()
    told = [row for row in rows(data, code=1) if row["type"] == "damage"]
    assert (2, "the segment is missing") in [(row["segment"], row["why"]) for row in told]


def test_a_segment_that_is_prepared_is_no_damage(log: Path) -> None:
    segment(log, 2).write_bytes(bytes(4096))
    (note,) = [row for row in rows(log) if row["type"] == "note"]
    assert note["segment"] == 2 and "prepared" in note["why"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path, "no such file"),
        (lambda path: path.mkdir() or path, "it has no WAL"),
        (lambda path: path.write_text("x") and path, "its name is not that of a WAL segment"),
    ],
)
def test_invalid_log_is_refused(tmp_path: Path, make: Any, words: str) -> None:
    result = dump(make(tmp_path / "thing"))
    assert result.exit_code == 1 and words in result.stderr and result.stdout == ""


def test_files_that_are_anything(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    for content in (b"", b"x", b"SANDQWAL" * 9, b"WREC" * 1000, bytes(100), b"\xff" * 4096):
        segment(tmp_path).write_bytes(content)
        result = dump(tmp_path)
        assert result.exit_code in (0, 1) and isinstance(result.exception, (SystemExit, type(None)))


@pytest.mark.parametrize(
    "args", [[], ["x", "--group", "-1"], ["x", "--from", "0"], ["x", "--from", "5", "--to", "4"], ["x", "--grup", "1"]]
)
def test_wrong_usage(args: list[str]) -> None:
    assert dump(*args).exit_code == 2


@pytest.mark.parametrize("seal", [True, False])
def test_dump_reports_damage_exactly_where_recovery_refuses(tmp_path: Path, seal: bool) -> None:
    """A changed byte anywhere is shown as damage exactly if recovery refuses the log."""
    rng = random.Random(5)
    batches = [[members(), no_op(1)], *([entry(at, append(b"x" * 700))] for at in range(2, 120))]
    data = write_log(tmp_path / "data", batches, seal=seal)
    whole = {path: path.read_bytes() for path in sorted((data / "wal").iterdir())}
    assert len(whole) == 2
    told = []
    for _ in range(100):
        path = rng.choice(list(whole))
        end = len(whole[path].rstrip(b"\0")) + 40
        content = bytearray(whole[path])
        content[rng.choice([rng.randrange(64), rng.randrange(end), end - rng.randrange(60)])] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        files = ReadOnlyFiles(data)
        try:
            recover(files, "wal", lambda group: True)
            refused = False
        except Corruption:
            refused = True
        finally:
            files.close()
        assert dump(data).exit_code == int(refused), path
        told.append(refused)
        path.write_bytes(whole[path])
    assert True in told and False in told


def test_token_hash_is_not_shown() -> None:
    command = m.PutIdentity("token:app", True, ["read"], b"h" * 32, None, {}, "")
    assert command_record(command, values=True)["secret_hash"] == "<hidden>"


def test_skip_entry_shows_replaced_and_applied_commands(tmp_path: Path) -> None:
    skipping = c.Entry(NOW_MS, (c.Skipped(b"an operator's id", OFFSET), c.Expire())).encode()
    skip = Skip(2, 1, b"an operator's id", skipping).encode()
    damaged = Kind.ENTRY, GROUP, 4, 1, bytes([SKIP]) + b"\xc1"
    batches = [[members(), no_op(1)], [entry(2, append(b"x")), (Kind.ENTRY, GROUP, 3, 1, bytes([SKIP]) + skip)]]
    log = write_log(tmp_path / "data", batches)
    row = rows(log, "--group", GROUP)[-1]
    assert (row["index"], row["entry"], row["of_index"], row["of_term"]) == (3, "skip", 2, 1)
    assert [command["command"] for command in row["commands"]] == ["skipped", "expire"]
    assert "skip of entry 2 of term 1, applied instead: " in dump(log, "--group", GROUP).stdout
    with pytest.raises(Corruption, match="a SKIP entry cannot be read"):
        payload_record(damaged[0], damaged[1], damaged[4], values=False)
