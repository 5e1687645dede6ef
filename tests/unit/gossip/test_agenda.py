"""Tests of the agenda: planned calls run in order and once. Also of the clock that pauses with its process."""

from __future__ import annotations

from sandq.gossip.agenda import SWEEP_TASKS, Agenda
from sandq.membership.awake_clock import STALL_S, AwakeClock


def test_due_calls_run_in_order() -> None:
    agenda = Agenda(10.0)
    done: list[str] = []
    for delay_s, name in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (1.0, "a too")):
        agenda.after(delay_s, lambda name=name: done.append(name))
    assert agenda.next_at == 11.0
    agenda.run(10.9)
    assert done == []
    agenda.run(12.0)
    assert done == ["a", "a too", "b"] and agenda.next_at == 13.0
    agenda.run(20.0)
    agenda.run(30.0)
    assert done == ["a", "a too", "b", "c"] and agenda.next_at is None


def test_cancelled_call_does_not_run_even_if_both_are_due() -> None:
    agenda = Agenda(0.0)
    done: list[str] = []
    second = agenda.after(2.0, lambda: done.append("second"))
    agenda.after(1.0, second.cancel)
    agenda.run(5.0)
    assert done == [] and len(agenda) == 0


def test_call_planned_during_run_waits_for_the_next_run() -> None:
    agenda = Agenda(0.0)
    done: list[float] = []

    def again() -> None:
        done.append(agenda.now)
        agenda.after(0.0, again)

    agenda.after(0.0, again)
    agenda.run(1.0)
    agenda.run(2.0)
    assert done == [1.0, 2.0]


def test_time_never_goes_back() -> None:
    agenda = Agenda(5.0)
    agenda.advance(9.0)
    agenda.advance(7.0)
    agenda.run(8.0)
    assert agenda.now == 9.0 and agenda.after(1.0, lambda: None).at == 10.0


def test_cancelled_tasks_do_not_accumulate() -> None:
    agenda = Agenda(0.0)
    kept = [agenda.after(1.0, lambda: None) for _ in range(10)]
    for _ in range(20 * SWEEP_TASKS):
        agenda.after(86_400.0, lambda: None).cancel()
    assert len(agenda) <= SWEEP_TASKS
    assert not any(task.is_cancelled for task in kept)
    for _ in range(3 * SWEEP_TASKS):
        agenda.after(2.0, lambda: None)
    assert len(agenda) >= 3 * SWEEP_TASKS + 10, "no planned call may be lost"
    agenda.run(2.0)
    assert all(task.is_cancelled for task in kept) and len(agenda) == 0


# ----------------------------------------------------------------------------------------------------------- the clock


class Below:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_timely_wakeup_is_no_stall() -> None:
    below = Below()
    clock = AwakeClock(below)
    assert clock.now() == 50.0
    assert clock.plan(50.2) == 50.2
    below.now = 50.2 + STALL_S
    assert (clock.now(), clock.stalls) == (50.2 + STALL_S, 0)


def test_a_stall_is_taken_out() -> None:
    below = Below()
    clock = AwakeClock(below)
    clock.plan(50.2)
    below.now = 53.2
    assert clock.now() == 50.2 and clock.stalls == 1
    below.now = 53.3
    assert round(clock.now(), 6) == 50.3 and clock.stalls == 1
    assert round(clock.plan(50.4), 6) == 53.4
    below.now = 60.0
    assert clock.now() == 50.4 and clock.stalls == 2


def test_first_reader_after_a_stall_gets_the_planned_time() -> None:
    """The task of a stream may run before the planned task. It must not report a later time to the core."""
    below = Below()
    clock = AwakeClock(below)
    clock.plan(50.2)
    below.now = 80.0
    assert [clock.now() for _ in range(3)] == [50.2] * 3 and clock.stalls == 1
