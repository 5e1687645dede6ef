"""Tests of the values that follow from intervals and multipliers, and of the promises of the profiles."""

from __future__ import annotations

import pytest

from sandq.model.gossip_timing import PROFILES, Timing

LAN, FAST = PROFILES["lan"], PROFILES["fast"]


@pytest.mark.parametrize(("members", "seconds"), [(0, 4.0), (1, 4.0), (10, 4.0), (100, 8.0), (1000, 12.0)])
def test_a_suspect_has_longer_among_many(members: int, seconds: float) -> None:
    assert LAN.suspicion_s(members) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("mult", "members", "wanted"),
    [(4, 1, 0), (4, 3, 0), (4, 4, 2), (4, 1000, 2), (3, 2, 0), (3, 3, 1), (2, 9, 0), (1, 9, 0), (5, 4, 0), (5, 5, 3)],
)
def test_confirmations_depend_on_the_cluster_size(mult: int, members: int, wanted: int) -> None:
    assert Timing(suspicion_mult=mult).confirmations(members) == wanted


@pytest.mark.parametrize(("members", "times"), [(1, 8), (9, 8), (10, 8), (99, 8), (100, 12), (1000, 16)])
def test_transmissions_depend_on_the_cluster_size(members: int, times: int) -> None:
    assert LAN.transmits(members) == times


@pytest.mark.parametrize(
    ("members", "seconds"), [(1, 30.0), (32, 30.0), (33, 60.0), (64, 60.0), (65, 90.0), (1000, 180.0)]
)
def test_many_members_compare_less_often(members: int, seconds: float) -> None:
    assert LAN.push_pull_s(members) == seconds


@pytest.mark.parametrize("timing", PROFILES.values(), ids=PROFILES)
def test_profiles_leave_time_to_ask_others(timing: Timing) -> None:
    assert 0 < timing.probe_timeout_s < timing.probe_interval_s
    assert timing.gossip_interval_s < timing.probe_interval_s < timing.suspicion_s(1)
    assert timing.dead_gossip_s > timing.suspicion_s(10) * timing.suspicion_max_mult / 2
    assert timing.reconnect_interval_s < timing.dead_gossip_s < timing.forget_s


def test_fast_is_twice_as_fast() -> None:
    crash_s = {
        name: timing.probe_interval_s * 1.5 + timing.suspicion_s(5) for name, timing in (("lan", LAN), ("fast", FAST))
    }
    assert crash_s == {"lan": 5.5, "fast": 2.25}
