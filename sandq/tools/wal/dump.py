"""`sandq wal dump`: every record of a log, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandq.model.errors import Corruption, StartupError
from sandq.storage.wal_format import Kind
from sandq.tools.running import one_line
from sandq.tools.wal.decode import payload_record, payload_text
from sandq.tools.wal.walk import Found, Note, Problem, Segment, missing_between, segments_of, walk_segment


@dataclass(frozen=True)
class Wanted:
    """Which records: of one group, with an index within `first` and `last`; None is any."""

    group: int | None = None
    first: int | None = None
    last: int | None = None

    def holds(self, found: Found) -> bool:
        """Whether it is to be shown."""
        _, group, index, _, _ = found.record
        if self.group is not None and group != self.group:
            return False
        if self.first is None and self.last is None:
            return True
        return index > 0 and (self.first or 0) <= index and (self.last is None or index <= self.last)


@dataclass
class Totals:
    """What was met."""

    segments: int = 0
    records: int = 0
    shown: int = 0
    torn: int = 0
    damaged: int = 0

    def text(self) -> str:
        """For the end."""
        parts = [_counted(self.records, "record"), f"in {_counted(self.segments, 'segment')}"]
        if self.shown != self.records:
            parts.append(f"({self.shown:,} shown)")
        told = [f"{_counted(self.damaged, 'damaged place')}"] if self.damaged else []
        told += [_counted(self.torn, "torn end")] if self.torn else []
        return " ".join(parts) + "; " + (", ".join(told) if told else "no damage")


def dump(paths: Sequence[Path], wanted: Wanted, *, values: bool, as_json: bool, write: Callable[[str], None]) -> Totals:
    """Write a line for each record that is wanted and for all that is wrong. InvalidRequest when there is no log."""
    segments = segments_of(paths)
    missing = {segment.path: segment for segment in missing_between(segments)}
    totals = Totals()
    for segment in sorted([*segments, *missing.values()], key=lambda one: (_turn(one, segments), one.number)):
        problem = Problem(segment.number, 0, 0, "damage", "the segment is missing")
        items = iter([problem]) if segment.path in missing else walk_segment(segment)
        if not as_json:
            write(one_line(f"{segment.path}:"))
        totals.segments += segment.path not in missing
        for line in _lines(segment, items, wanted, totals, values, as_json):
            write(line)
    return totals


def _turn(segment: Segment, segments: Sequence[Segment]) -> int:
    """Where its directory was named."""
    return next(at for at, one in enumerate(segments) if one.path.parent == segment.path.parent)


def _lines(
    segment: Segment,
    items: Iterator[Found | Problem | Note],
    wanted: Wanted,
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
            elif not wanted.holds(item):
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
            yield one_line(_line(record))


def _found_record(found: Found, values: bool) -> dict[str, Any]:
    kind, group, index, term, payload = found.record
    name = Kind(kind).name.lower() if kind in list(Kind) else f"kind {kind}"
    record: dict[str, Any] = {
        "type": "record",
        "offset": found.offset,
        "size": found.size,
        "pass": found.pass_number,
        "kind": name,
        "group": group,
        "index": index,
        "term": term,
        "payload_bytes": len(payload),
        "crc": "ok",
    }
    if name.startswith("kind "):
        return record | {"error": "this kind is not known here"}
    try:
        return record | payload_record(kind, group, payload, values=values)
    except Corruption as error:
        return record | {"error": error.message}
    except StartupError as newer:
        return record | {"unknown": newer.message}


_OWN = ("type", "offset", "size", "pass", "kind", "group", "index", "term", "payload_bytes", "crc", "error")


def _line(record: dict[str, Any]) -> str:
    if record["type"] in ("torn", "damage"):
        word = "TORN" if record["type"] == "torn" else "DAMAGE"
        reach = f" to {record['end']}" if record["end"] > record["offset"] else ""
        meaning = "the node cuts it when it starts, or is just writing it" if word == "TORN" else "the node refuses it"
        return f"  {record['offset']:>10}  {word}{reach}: {record['why']} ({meaning})"
    if record["type"] == "note":
        return f"  {record['offset']:>10}  {record['why']}"
    where = f"group {record['group']}" + (f" index {record['index']}" if record["index"] else "")
    text = payload_text({name: value for name, value in record.items() if name not in _OWN})
    if "error" in record:
        text = f"ERROR: {record['error']}"
    head = f"  {record['offset']:>10}  {record['kind']:<10} {where} term {record['term']}"
    return f"{head}, pass {record['pass']}, {record['payload_bytes']} bytes, crc {record['crc']}  {text}".rstrip()


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
