from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sandq.broker.clock.guarded_clock import GuardedClock


@dataclass
class Clocks:
    """A wall and a monotonic clock in the hands of a test, and a guarded clock over them."""

    wall_s: float = 1_800_000_000.0
    monotonic_s: float = 50.0
    alarms: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.guarded = GuardedClock(
            wall=lambda: self.wall_s,
            monotonic=lambda: self.monotonic_s,
            on_alarm=self.alarms.append,
        )

    def advance(self, seconds: float, *, wall_too: bool = True) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds if wall_too else 0

    def behind_ms(self) -> float:
        return round((self.wall_s - self.guarded.now_s()) * 1000, 3)


def test_goes_with_the_wall_clock() -> None:
    clocks = Clocks()
    clocks.advance(5)
    assert clocks.guarded.now_ms() == 1_800_000_005_000


def test_a_small_difference_is_slewed_away_at_500_ppm() -> None:
    clocks = Clocks()
    clocks.wall_s += 0.2
    assert clocks.behind_ms() == 200
    clocks.advance(100)
    assert clocks.behind_ms() == pytest.approx(150, abs=0.01)
    clocks.advance(1000)
    assert clocks.behind_ms() == 0


def test_slewing_back_never_decreases_the_clock() -> None:
    clocks = Clocks()
    clocks.wall_s -= 0.4
    last = clocks.guarded.now_s()
    for _ in range(100):
        clocks.advance(0.001)
        now = clocks.guarded.now_s()
        assert now > last
        last = now


def test_pause_between_reading_both_clocks_is_no_step() -> None:
    wall_s, monotonic_s, still_s = 1_800_000_000.0, [50.0], [0.0]
    alarms: list[int] = []

    def monotonic() -> float:
        """Return the monotonic time, which is read after the wall clock. The machine pauses once between the two."""
        monotonic_s[0] += still_s[0]
        still_s[0] = 0.0
        return monotonic_s[0]

    guarded = GuardedClock(wall=lambda: wall_s - 50.0 + monotonic_s[0], monotonic=monotonic, on_alarm=alarms.append)
    still_s[0] = 3.0
    assert guarded.now_s() == pytest.approx(wall_s + 3.0)
    assert not alarms and not guarded.alarm


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 0.6])
def test_a_jump_raises_one_alarm_and_is_not_followed(jump_s: float) -> None:
    clocks = Clocks()
    clocks.wall_s += jump_s
    for _ in range(3):
        clocks.advance(10)
        assert clocks.behind_ms() == pytest.approx(jump_s * 1000)
    assert clocks.guarded.alarm
    assert clocks.alarms == [pytest.approx(jump_s * 1000, abs=10)]


def test_alarm_ends_when_the_wall_clock_is_right_again() -> None:
    clocks = Clocks()
    clocks.wall_s += 3600
    clocks.guarded.now_s()
    clocks.wall_s -= 3600
    clocks.guarded.now_s()
    assert not clocks.guarded.alarm


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_an_accepted_jump_is_followed_at_once(jump_s: float) -> None:
    clocks = Clocks()
    clocks.wall_s += jump_s
    status = clocks.guarded.accept()
    assert (status.drift_ms, status.alarm) == (0, False)
    assert clocks.behind_ms() == 0


def test_now_is_rounded_down_to_ms() -> None:
    clocks = Clocks()
    clocks.advance(0.0009)
    assert clocks.guarded.now_ms() == 1_800_000_000_000
    assert clocks.guarded.seconds_until(1_800_000_000_001) == pytest.approx(0.0001, abs=1e-6)
    assert clocks.guarded.seconds_until(0) == 0


def test_delay_at_start_makes_the_clock_no_later_than_its_best_reading() -> None:
    """Both clocks show the same time. The second read is 10 ms later, except once."""
    now_s, hold_ups_s = 50.0, iter([0.01, 0.01, 0.0, 0.01, 0.01])

    def monotonic_s() -> float:
        nonlocal now_s
        now_s += next(hold_ups_s, 0.0)
        return now_s

    guarded = GuardedClock(wall=lambda: 1_800_000_000.0 + now_s, monotonic=monotonic_s)
    assert next(hold_ups_s, None) is None, "every read was used"
    assert guarded.status().drift_ms == 0
