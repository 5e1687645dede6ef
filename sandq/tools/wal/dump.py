"""`sandq wal dump`: print all records of a log, and its damage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandq.model.errors import Corruption, StartupError
from sandq.storage.wal_format import Kind
from sandq.tools.running import printable
from sandq.tools.wal.decode import payload_record, payload_text
from sandq.tools.wal.walk import Found, Note, Problem, Segment, missing_between, read_segment, segments_of


@dataclass(frozen=True)
class RecordFilter:
    """A filter of records: one group, and indexes from `first` to `last`. A field of None allows all values."""

    group: int | None = None
    first: int | None = None
    last: int | None = None

    def matches(self, found: Found) -> bool:
        """Return whether the record passes the filter."""
        _, group, index, _, _ = found.record
        if self.group is not None and group != self.group:
            return False
        if self.first is None and self.last is None:
            return True
        return index > 0 and (self.first or 0) <= index and (self.last is None or index <= self.last)


@dataclass
class Totals:
    """Counts of the items that a dump has read."""

    segments: int = 0
    records: int = 0
    shown: int = 0
    torn: int = 0
    damaged: int = 0

    def text(self) -> str:
        """Return the last line of the output."""
        parts = [_counted(self.records, "record"), f"in {_counted(self.segments, 'segment')}"]
        if self.shown != self.records:
            parts.append(f"({self.shown:,} shown)")
        problems = [f"{_counted(self.damaged, 'damaged place')}"] if self.damaged else []
        problems += [_counted(self.torn, "torn end")] if self.torn else []
        return " ".join(parts) + "; " + (", ".join(problems) if problems else "no damage")


def dump(
    paths: Sequence[Path], wanted: RecordFilter, *, values: bool, as_json: bool, write: Callable[[str], None]
) -> Totals:
    """Write a line for each record that passes the filter, and for each problem.

    Return the counts. Raises InvalidRequest if there is no log.
    """
    segments = segments_of(paths)
    missing = {segment.path: segment for segment in missing_between(segments)}
    totals = Totals()
    for segment in sorted(
        [*segments, *missing.values()], key=lambda one: (_directory_position(one, segments), one.number)
    ):
        problem = Problem(segment.number, 0, 0, "damage", "the segment is missing")
        items = iter([problem]) if segment.path in missing else read_segment(segment)
        if not as_json:
            write(printable(f"{segment.path}:"))
        totals.segments += segment.path not in missing
        for line in _lines(segment, items, wanted, totals, values, as_json):
            write(line)
    return totals


def _directory_position(segment: Segment, segments: Sequence[Segment]) -> int:
    """Return the position of the segment's directory among the arguments."""
    return next(at for at, one in enumerate(segments) if one.path.parent == segment.path.parent)


def _lines(
    segment: Segment,
    items: Iterator[Found | Problem | Note],
    wanted: RecordFilter,
    totals: Totals,
    values: bool,
    as_json: bool,
) -> Iterator[str]:
    for item in items:
        record: dict[str, Any]
        if isinstance(item, Found):
            totals.records += 1
            record = _found_record(item, values)
            if record["crc"] != "ok" or "error" in record:
                totals.damaged += 1
            elif not wanted.matches(item):
                continue
            totals.shown += 1
        elif isinstance(item, Problem):
            totals.torn += item.kind == "torn"
            totals.damaged += item.kind == "damage"
            record = {"type": item.kind, "offset": item.offset, "end": item.end, "why": item.why}
        else:
            record = {"type": "note", "offset": item.offset, "why": item.text}
        if as_json:
            yield json.dumps({"file": str(segment.path), "segment": segment.number, **record})
        else:
            yield printable(_line(record))


def _found_record(found: Found, values: bool) -> dict[str, Any]:
    kind, group, index, term, payload = found.record
    name = Kind(kind).name.lower() if kind in list(Kind) else f"kind {kind}"
    record: dict[str, Any] = {
        "type": "record",
        "offset": found.offset,
        "size": found.size,
        "pass": found.batch_number,
        "kind": name,
        "group": group,
        "index": index,
        "term": term,
        "payload_bytes": len(payload),
        "crc": "ok",
    }
    if name.startswith("kind "):
        return record | {"error": "this version does not know this kind"}
    try:
        return record | payload_record(kind, group, payload, values=values)
    except Corruption as error:
        return record | {"error": error.message}
    except StartupError as newer:
        return record | {"unknown": newer.message}


_HEAD_FIELDS = ("type", "offset", "size", "pass", "kind", "group", "index", "term", "payload_bytes", "crc", "error")


def _line(record: dict[str, Any]) -> str:
    if record["type"] in ("torn", "damage"):
        word = "TORN" if record["type"] == "torn" else "DAMAGE"
        reach = f" to {record['end']}" if record["end"] > record["offset"] else ""
        meaning = (
            "the node cuts it at its start, or is writing it now" if word == "TORN" else "the node refuses to start"
        )
        return f"  {record['offset']:>10}  {word}{reach}: {record['why']} ({meaning})"
    if record["type"] == "note":
        return f"  {record['offset']:>10}  {record['why']}"
    where = f"group {record['group']}" + (f" index {record['index']}" if record["index"] else "")
    text = payload_text({name: value for name, value in record.items() if name not in _HEAD_FIELDS})
    if "error" in record:
        text = f"ERROR: {record['error']}"
    head = f"  {record['offset']:>10}  {record['kind']:<10} {where} term {record['term']}"
    return f"{head}, pass {record['pass']}, {record['payload_bytes']} bytes, crc {record['crc']}  {text}".rstrip()


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
