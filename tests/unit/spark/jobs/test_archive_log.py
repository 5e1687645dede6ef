"""Tests of Spark's list of the files of an archive: reads, merged files, and the list after a merge."""

from __future__ import annotations

import json
import random

import pytest

from sandq.errors import InvalidRequest
from sandq.spark.jobs.archive_log import ListedFile, bins, current_lists, last_compact, list_text, parse_list, with_bins


def listed(path: str, size: int) -> ListedFile:
    record = {"path": path, "size": size, "isDir": False, "modificationTime": 5, "action": "add"}
    return ListedFile(path, size, record)


def test_list_in_the_format_of_spark_is_parsed() -> None:
    text = (
        'v1\n{"path":"file:///a/topic=t/date=2030-01-01/part-0.parquet","size":4006,"isDir":false,'
        '"modificationTime":1795810047366,"blockReplication":1,"blockSize":33554432,"action":"add"}'
    )
    (file,) = parse_list(text, "x")
    assert (file.directory, file.size) == ("file:///a/topic=t/date=2030-01-01", 4006)
    assert list_text([file]) == text
    assert parse_list("v1", "x") == [] and list_text([]) == "v1"
    for wrong in ("", "v2\n", "v1\nx", "v1\n{}", text.replace('"add"', '"delete"')):
        with pytest.raises(InvalidRequest, match=r"0\.compact: it is not a list"):
            parse_list(wrong, "0.compact")


def test_last_compact_returns_the_newest_compact_list() -> None:
    assert last_compact(["8", "9.compact", "19.compact", "20", ".19.compact.crc", ".19.compact.draft"]) == "19.compact"
    assert last_compact(["0", "1", ".0.crc"]) is None


def test_current_lists_returns_the_lists_since_the_last_compact_one() -> None:
    assert current_lists(["8", "9.compact", "10", "19.compact", "20", "21", ".21.crc"]) == ["19.compact", "20", "21"]
    assert current_lists(["18", "9.compact", "19.compact"]) == ["19.compact"]
    assert current_lists(["0", "2"]) == ["0", "1", "2"], "also a missing file"
    assert current_lists([".19.compact.draft", "_x"]) == []


def test_small_files_of_a_directory_become_one() -> None:
    a, b, big, c, other = (listed(*one) for one in (("d/a", 30), ("d/b", 40), ("d/x", 50), ("d/c", 40), ("e/a", 1)))
    assert bins([a, b, big, other, c], 100) == [[a, b]], "with c the file would be too large, so c stays alone"
    assert bins([a, big, other], 100) == []
    new = listed("d/new", 60)
    assert with_bins([a, b, big, other, c], [([a, b], new)]) == [new, big, other, c]


@pytest.mark.parametrize("seed", range(5))
def test_each_row_stays_where_it_is_once(seed: int) -> None:
    rng = random.Random(seed)
    files = [listed(f"{rng.choice('abc')}/{number}", rng.randrange(1, 80)) for number in range(60)]
    groups = bins(files, 100)
    places = [file.path for group in groups for file in group]
    assert groups and len(places) == len(set(places)), f"seed {seed}"
    merged = []
    for number, group in enumerate(groups):
        assert len({file.directory for file in group}) == 1 and len(group) > 1
        size = sum(file.size for file in group)
        assert size <= 100
        merged.append((group, listed(f"{group[0].directory}/new-{number}", size)))
    after = parse_list(list_text(with_bins(files, merged)), "x")
    for directory in "abc":
        assert sum(f.size for f in after if f.directory == directory) == sum(
            f.size for f in files if f.directory == directory
        )
    assert {file.path for file in after}.isdisjoint(places)
    assert json.loads(list_text(after).splitlines()[1])["action"] == "add"
