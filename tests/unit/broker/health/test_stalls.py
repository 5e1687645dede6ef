"""Tests of stall detection: stalled work is distinguished from slow work."""

from __future__ import annotations

from sandq.broker.health.stalls import CHECK_S, Stalls, Watched


class Work:
    def __init__(self) -> None:
        self.progress: int | None = None
        self.stalls = Stalls([Watched("log", "the log", 5.0, lambda: self.progress)])
        self.now_s = 100.0

    def poll(self, seconds: float = CHECK_S) -> None:
        self.now_s += seconds
        self.stalls.check(self.now_s)

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / CHECK_S)):
            self.poll()

    def labels(self) -> list[str]:
        return [one.label for one in self.stalls.stalled()]


def test_idle_work_is_not_stalled() -> None:
    work = Work()
    work.advance(60)
    assert work.labels() == [] and work.stalls.ages_s == {"log": 0.0}


def test_work_with_progress_is_not_stalled() -> None:
    work = Work()
    for step in range(100):
        work.progress = step
        work.advance(4)
    assert work.labels() == []


def test_work_without_progress_is_stalled_until_it_progresses() -> None:
    work = Work()
    work.progress = 1
    work.poll()
    work.advance(4.75)
    assert work.labels() == []
    work.poll()
    assert work.labels() == ["log"] and work.stalls.ages_s["log"] == 5.0
    work.progress = 2
    work.poll()
    assert work.labels() == [] and work.stalls.ages_s["log"] == 0.0


def test_paused_process_does_not_count_the_pause() -> None:
    """The process was stopped for a minute, together with its threads."""
    work = Work()
    work.progress = 1
    work.poll()
    work.poll(60)
    assert work.labels() == [] and work.stalls.ages_s["log"] == 2 * CHECK_S


def test_stall_time_starts_again_with_new_work() -> None:
    work = Work()
    work.progress = 1
    work.advance(4)
    work.progress = None
    work.poll()
    work.progress = 1
    work.advance(4)
    assert work.labels() == []
