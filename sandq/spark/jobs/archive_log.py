"""Spark's list of the valid files of an archive, PATH/_spark_metadata: parsing and changing its text.

Micro-batch N writes a list N with a line for each file that it has written. In regular intervals a micro-batch instead
writes N.compact, with the lines of all micro-batches up to N. Readers use the last N.compact and the lists after it. So
by replacing N.compact, all its files can be replaced by other files in one step.
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
    """A valid file; `path` is its URI, `record` its complete line."""

    path: str
    size: int
    record: dict[str, Any]

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


def last_compact(names: Iterable[str]) -> str | None:
    """Return the name of the last compact list among the names of the directory; None if there is none."""
    numbers = [int(name.removesuffix(COMPACT)) for name in names if name.endswith(COMPACT) and name[0].isdecimal()]
    return f"{max(numbers)}{COMPACT}" if numbers else None


def current_lists(names: Iterable[str]) -> list[str]:
    """Return the names of the lists that together have all valid files.

    These are the last compact list, and a list for each micro-batch after it. The caller checks that all of them exist.
    """
    existing = [*names]
    last = last_compact(existing)
    after = -1 if last is None else int(last.removesuffix(COMPACT))
    newest = max((int(name) for name in existing if name.isdecimal()), default=after)
    return [*([] if last is None else [last]), *(str(number) for number in range(after + 1, newest + 1))]


def parse_list(text: str, path: str) -> list[ListedFile]:
    """Return the files of a list. Raises InvalidRequest if this version does not know its format."""
    version, *lines = text.splitlines() or [""]
    try:
        records = [json.loads(line) for line in lines if line]
        found = [ListedFile(str(record["path"]), int(record["size"]), record) for record in records]
    except (ValueError, KeyError, TypeError):
        version, found, records = "", [], []
    if version != VERSION or any(record.get("action") != "add" for record in records):
        raise InvalidRequest(f"{path}: it is not a list of files in a format that this version supports")
    return found


def list_text(files: Iterable[ListedFile]) -> str:
    """Return the text of a list."""
    return "\n".join([VERSION, *(json.dumps(file.record, separators=(",", ":")) for file in files)])


def bins(files: Sequence[ListedFile], target_bytes: int) -> list[list[ListedFile]]:
    """Return groups of files to merge.

    Each group has two or more files of one directory, in their order. Each file has less than half of `target_bytes`,
    and a group has at most `target_bytes`.
    """
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
    """Return the list with each group of files replaced by its merged file, at the position of its first file."""
    firsts = {group[0].path: new for group, new in merged}
    replaced = {file.path for group, _ in merged for file in group}
    return [firsts.get(file.path, file) for file in files if file.path not in replaced or file.path in firsts]
