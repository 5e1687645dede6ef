"""Tests that the job archive checks for new messages without Spark, from the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.errors import InvalidRequest
from sandq.spark.jobs.archive import without_news


@pytest.mark.parametrize("text", ["", "v1\n{}\n{not JSON", "v1\n{}\n[]"])
def test_a_broken_checkpoint(tmp_path: Path, text: str) -> None:
    for name, said in (("offsets", text), ("commits", "v1\n{}")):
        (tmp_path / "_checkpoint" / name).mkdir(parents=True)
        (tmp_path / "_checkpoint" / name / "3").write_text(said)
    with pytest.raises(InvalidRequest, match=r"_checkpoint/offsets/3: it is broken|a position like"):
        without_news(["t"], str(tmp_path), servers=["127.0.0.1:1"])


def test_a_first_run_has_news(tmp_path: Path) -> None:
    assert without_news(["t"], str(tmp_path / "none"), servers=["127.0.0.1:1"]) is None
    (tmp_path / "_checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "_checkpoint" / "offsets" / "0").write_text("")
    assert without_news(["t"], str(tmp_path), servers=["127.0.0.1:1"]) is None, "a micro-batch that has not ended"
