"""Tests of the shares of hosts, and of the hosts that a node remembers."""

from __future__ import annotations

import random

import pytest

from sandq.push.circuit import FIRST_PAUSE_S, MOST_ASKED_S, THRESHOLD
from sandq.push.hosts import SLOW_S, SOON_S, Host, Hosts, HostShares, Ticket


def proven(name: str) -> Host:
    host = Host(name)
    host.succeeded(0.1)
    return host


def enter(shares: HostShares, host: Host, count: int, now_s: float = 0.0) -> list[Ticket]:
    return [ticket for _ in range(count) if (ticket := shares.enter(host, now_s)) is not None]


def started(tickets: list[Ticket]) -> int:
    return sum(ticket.has_slot for ticket in tickets)


def test_proven_host_gets_a_quarter_of_the_slots() -> None:
    shares = HostShares(40)
    tickets = enter(shares, proven("a"), 100)
    assert started(tickets) == 10 and len(tickets) == 20, "as many wait, and the others are snoozed"
    assert started(enter(shares, proven("b"), 10)) == 10


@pytest.mark.parametrize(("slots", "of_host", "of_suspects"), [(1, 1, 1), (3, 1, 1), (10, 2, 5), (100, 25, 50)])
def test_shares_are_at_least_one_slot(slots: int, of_host: int, of_suspects: int) -> None:
    shares = HostShares(slots)
    assert (shares.per_host, shares.of_suspects) == (of_host, of_suspects)
    assert started(enter(shares, Host("a"), 3)) == 1


def test_unknown_host_gets_one_request_until_it_answers() -> None:
    shares, host = HostShares(40), Host("a")
    first, *rest = enter(shares, host, 5)
    assert first.has_slot and started(rest) == 0
    host.succeeded(0.1)
    shares.leave(first, 0.1)
    assert started(rest) == 4


def test_suspect_hosts_get_half_of_the_slots() -> None:
    shares = HostShares(40)
    suspects = [ticket for number in range(60) for ticket in enter(shares, Host(f"h{number}"), 1)]
    assert started(suspects) == 20 and len(suspects) == 40, "half of the slots, and half of the places to wait"
    good = [ticket for number in range(2) for ticket in enter(shares, proven(f"good{number}"), 10)]
    assert started(good) == 20


def test_slow_host_becomes_suspect() -> None:
    shares = HostShares(8)
    slow = [enter(shares, proven(f"slow{number}"), 2) for number in range(2)]
    assert sum(map(started, slow)) == 4
    now_s = SLOW_S + 0.1
    assert started(enter(shares, proven("good"), 2, now_s)) == 2
    assert started(enter(shares, Host("new"), 1, now_s)) == 0, "the suspect hosts have their half already"


def test_waiting_hosts_get_free_slots_one_after_another() -> None:
    shares = HostShares(4)
    running = [enter(shares, proven(name), 1)[0] for name in "abcd"]
    waiting = [enter(shares, proven(name), 1)[0] for name in "abcd"]
    for ticket in running:
        shares.leave(ticket, 1.0)
    assert started(waiting) == 4
    for ticket in waiting:
        shares.leave(ticket, 2.0)
    assert shares._running == {} and not shares._waiting and (shares._taken, shares._queued) == (0, 0)


def test_waiting_messages_of_a_host_whose_circuit_opens_are_dismissed() -> None:
    shares, host = HostShares(40), proven("a")
    tickets = enter(shares, host, 20)
    for _ in range(THRESHOLD):
        host.failed("HTTP 500", 1.0, 0.1)
    shares.leave(tickets[0], 1.0)
    assert all(ticket.decided.is_set() for ticket in tickets) and started(tickets) == 10
    assert shares.enter(host, 1.0) is None
    assert shares._queued == 0


def test_open_host_is_probed_by_one_request_after_its_pause() -> None:
    shares, host = HostShares(40), Host("a")
    for _ in range(THRESHOLD):
        host.failed("HTTP 500", 0.0, 0.1)
    assert host.is_open(0.5)
    tickets = enter(shares, host, 5, FIRST_PAUSE_S)
    assert started(tickets) == 1
    host.failed("HTTP 500", 1.5, 0.1)
    assert host.is_open(3.0) and not host.is_open(3.5), "the second pause is twice as long"


def test_snoozed_messages_return_as_far_apart_as_requests_take() -> None:
    host = proven("a")
    delays = [host.delay_s(0.0, 10) for _ in range(100)]
    assert delays[0] == SOON_S and delays == sorted(delays)
    assert delays[-1] - delays[0] == 1.0, "99 steps of 10 ms, rounded up"
    assert len(set(delays)) == 9, "most of them are given back together"


def test_snoozed_messages_of_an_open_host_return_after_its_pause_and_within_a_limit() -> None:
    host = Host("a")
    for _ in range(THRESHOLD):
        host.failed("no answer", 0.0, 30.0, 20.0)
    delays = [host.delay_s(0.0, 10) for _ in range(1000)]
    assert delays[0] == 20.0 and delays[-1] == 20.0 + MOST_ASKED_S
    host.succeeded(0.1)
    assert host.delay_s(0.0, 10) == SOON_S, "messages need not wait for those that were snoozed during the outage"


def test_many_hosts_are_remembered_up_to_the_limit() -> None:
    hosts = Hosts(most=100)
    for number in range(100_000):
        hosts.of("g", f"h{number}")
    assert len(hosts) == 100
    kept = hosts.of("g", "h99999")
    hosts.of("g", "new")
    assert hosts.of("g", "h99999") is kept and hosts.of("other", "h99999") is not kept


def test_open_hosts_of_a_group_are_listed() -> None:
    hosts = Hosts()
    for name in ("b", "a", "c"):
        for _ in range(THRESHOLD):
            hosts.of("g", name).failed("HTTP 500", 0.0, 0.1)
    hosts.of("g", "fine").succeeded(0.1)
    assert hosts.open_hosts("g", 2) == ["a", "b"] and hosts.open_hosts("other", 2) == []


@pytest.mark.parametrize("seed", range(20))
def test_random_messages_never_exceed_the_shares(seed: int) -> None:
    rng = random.Random(seed)
    shares, hosts = HostShares(rng.choice([1, 2, 7, 40])), [Host(f"h{number}") for number in range(12)]
    held: list[Ticket] = []
    now_s = 0.0
    for _ in range(2000):
        now_s += rng.random()
        if rng.random() < 0.6 or not held:
            if (ticket := shares.enter(rng.choice(hosts), now_s)) is not None:
                held.append(ticket)
        else:
            ticket = held.pop(rng.randrange(len(held)))
            if ticket.has_slot and rng.random() < 0.5:
                ticket.host.succeeded(0.1)
            elif ticket.has_slot:
                ticket.host.failed("HTTP 500", now_s, 0.1)
            shares.leave(ticket, now_s)
        running = [ticket for ticket in held if ticket.has_slot]
        assert len(running) == shares._taken <= shares.slots
        assert shares._queued == sum(map(len, shares._waiting.values())) <= shares.slots
        for host in hosts:
            assert sum(ticket.host is host for ticket in running) <= shares.per_host
    for ticket in held:
        shares.leave(ticket, now_s)
    assert (shares._taken, shares._queued, shares._running) == (0, 0, {}) and not shares._waiting
