"""Tests that a receiver that fails every request gets longer and longer pauses."""

from __future__ import annotations

from sandq.push.circuit import FIRST_PAUSE_S, MOST_ASKED_S, MOST_PAUSE_S, THRESHOLD, Circuit, State


def opened() -> Circuit:
    circuit = Circuit()
    assert [circuit.failed(0.0) for _ in range(THRESHOLD)] == [False] * (THRESHOLD - 1) + [True]
    return circuit


def test_circuit_opens_only_after_consecutive_failures() -> None:
    circuit = Circuit()
    for _ in range(3):
        for _ in range(THRESHOLD - 1):
            assert not circuit.failed(0.0)
        assert not circuit.succeeded()
    assert circuit.state is State.CLOSED
    assert (opened().state, opened().until_s) == (State.OPEN, FIRST_PAUSE_S)


def test_each_pause_is_longer_up_to_a_bound() -> None:
    circuit, now_s, pauses = opened(), 0.0, [FIRST_PAUSE_S]
    for _ in range(9):
        now_s = circuit.until_s
        circuit.probe()
        assert circuit.failed(now_s)
        pauses.append(circuit.until_s - now_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60] and pauses[-1] == MOST_PAUSE_S


def test_a_success_closes_it_and_pauses_are_short_again() -> None:
    circuit = opened()
    circuit.probe()
    assert circuit.state is State.PROBING
    assert circuit.succeeded() and circuit.state is State.CLOSED
    for _ in range(THRESHOLD):
        circuit.failed(100.0)
    assert circuit.until_s == 100.0 + FIRST_PAUSE_S


def test_failures_that_come_late_do_not_make_the_pause_longer() -> None:
    circuit = opened()
    assert not circuit.failed(0.5)
    assert circuit.until_s == FIRST_PAUSE_S


def test_a_success_that_comes_late_closes_it() -> None:
    assert opened().succeeded()


def test_a_receiver_that_asks_for_a_pause_gets_it_within_a_bound() -> None:
    for asked_s, pause_s in ((30.0, 30.0), (0.0, FIRST_PAUSE_S), (1e9, MOST_ASKED_S)):
        circuit = Circuit()
        for _ in range(THRESHOLD):
            circuit.failed(0.0, asked_s)
        assert circuit.until_s == pause_s
