"""Tests of CPU budgets: profiles of few and of many messages, split by layer."""

from __future__ import annotations

import pytest

from benchmarks.budget import OTHER, SYSTEM, Function, Layer, difference, layer_of, own_costs, scaled, table

TICK: Function = ("/x/sandq/raft/group.py", 7, "tick")
SEND: Function = ("~", 0, "<method 'send' of '_socket.socket' objects>")
LEN: Function = ("~", 0, "<built-in method builtins.len>")


@pytest.mark.parametrize(
    "function, layer",
    [
        (TICK, "Raft"),
        (("/lib/site-packages/pysyncobj/syncobj.py", 1, "_onTick"), "Raft"),
        (("/x/sandq/broker/delivery/a.py", 1, "f"), "delivery"),
        (("/x/sandq/broker/stats/node_stats.py", 1, "f"), "the rest of the broker"),
        (("/lib/json/decoder.py", 1, "decode"), OTHER),
        (SEND, SYSTEM),
        (LEN, OTHER),
    ],
)
def test_each_function_has_a_layer(function: Function, layer: str) -> None:
    assert layer_of(function) == layer


def test_c_functions_count_for_their_caller_and_system_calls_for_themselves() -> None:
    stats = {
        TICK: (5, 5, 0.5, 0.9, {}),
        LEN: (9, 9, 0.3, 0.3, {TICK: (9, 9, 0.3, 0.3)}),
        SEND: (2, 2, 0.1, 0.1, {TICK: (2, 2, 0.1, 0.1)}),
    }
    costs = own_costs(stats)
    assert costs["Raft", "group.tick"] == (5, pytest.approx(0.8))
    assert costs[SYSTEM, "'send of _socket.socket' objects"] == (2, 0.1)


def test_start_of_the_node_is_left_out() -> None:
    few = {"MainThread": {("Raft", "group.tick"): (100, 1.0), (OTHER, "start"): (1, 3.0)}}
    many = {"MainThread": {("Raft", "group.tick"): (300, 1.5), (OTHER, "start"): (1, 3.0)}}
    raft, others = difference(few, many, 100)
    assert (raft.name, raft.us, raft.calls) == ("Raft", pytest.approx(5000), 2)
    assert (others.us, others.calls) == (0, 0)
    assert "start" not in table([raft, others])


def test_costs_are_scaled_to_the_time_without_profiler() -> None:
    layers = scaled([Layer("a", "x", 30.0, 1, {"f": 20.0}), Layer("b", "y", 10.0)], 4.0)
    assert [layer.us for layer in layers] == [3.0, 1.0] and layers[0].functions == {"f": 2.0}
    assert table(layers).splitlines()[-1] == "| all | | 4 | | |"
