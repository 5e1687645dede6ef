"""Spark's list of the files of an archive that count, PATH/_spark_metadata, as text.

A micro-batch N writes a file N with a line for each file that it has written; every so many, N.compact has the lines of
all micro-batches up to N. Whoever reads goes by the last N.compact and by what came after it. So what N.compact lists
may be put into other files, all at once, by another N.compact in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandq.model.errors import InvalidRequest

FILES: Final = "_spark_metadata"
COMPACT: Final = ".compact"
VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that counts; `path` is a URI, `record` all that Spark says of it."""

    path: str
    size: int
    record: dict[str, Any]

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


def last_compact(names: Iterable[str]) -> str | None:
    """The name of the last list of all, among the names of the directory."""
    numbers = [int(name.removesuffix(COMPACT)) for name in names if name.endswith(COMPACT) and name[0].isdecimal()]
    return f"{max(numbers)}{COMPACT}" if numbers else None


def current_lists(names: Iterable[str]) -> list[str]:
    """The names of the lists that together have every file that counts, as they must be among the names of the
    directory: the last list of all, and one for each micro-batch after it."""
    there = [*names]
    last = last_compact(there)
    after = -1 if last is None else int(last.removesuffix(COMPACT))
    newest = max((int(name) for name in there if name.isdecimal()), default=after)
    return [*([] if last is None else [last]), *(str(number) for number in range(after + 1, newest + 1))]


def parse_list(text: str, what: str) -> list[ListedFile]:
    """The files of a list. InvalidRequest when it is none that this version knows."""
    version, *lines = text.splitlines() or [""]
    try:
        records = [json.loads(line) for line in lines if line]
        found = [ListedFile(str(record["path"]), int(record["size"]), record) for record in records]
    except (ValueError, KeyError, TypeError):
        version, found, records = "", [], []
    if version != VERSION or any(record.get("action") != "add" for record in records):
        raise InvalidRequest(f"{what}: it is no list of files as this version knows it")
    return found


def list_text(files: Iterable[ListedFile]) -> str:
    """The text of a list."""
    return "\n".join([VERSION, *(json.dumps(file.record, separators=(",", ":")) for file in files)])


def bins(files: Sequence[ListedFile], target_bytes: int) -> list[list[ListedFile]]:
    """Files that are to become one each: two or more of a directory, in their order, each of less than half of
    `target_bytes`, with no more than that together."""
    open_bins: dict[str, list[ListedFile]] = {}
    found: list[list[ListedFile]] = []
    for file in files:
        if file.size * 2 >= target_bytes:
            continue
        current = open_bins.setdefault(file.directory, [])
        if current and sum(one.size for one in current) + file.size > target_bytes:
            found.append(current)
            current = open_bins[file.directory] = []
        current.append(file)
    return [one for one in [*found, *open_bins.values()] if len(one) > 1]


def with_bins(
    files: Sequence[ListedFile], merged: Sequence[tuple[Sequence[ListedFile], ListedFile]]
) -> list[ListedFile]:
    """The list once each new file stands where the first of those stood that it has the rows of."""
    firsts = {of[0].path: new for of, new in merged}
    gone = {file.path for of, _ in merged for file in of}
    return [firsts.get(file.path, file) for file in files if file.path not in gone or file.path in firsts]
