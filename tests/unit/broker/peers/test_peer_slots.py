"""Tests of the slots of connections to the peer port before their introduction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import trio
import trio.testing

from sandq.broker.peers.peer_slots import KNOWN_SLOTS, SLOTS, SOURCE_SLOTS, PeerSlots, Slot

KNOWN = "10.0.0.1"


class Visitors:
    """Silent connections in the order of their arrival."""

    def __init__(self) -> None:
        self.peer_port = PeerSlots(lambda: {KNOWN})
        self._held = ExitStack()
        self.slots: list[Slot] = []

    def connect(self, *hosts: str) -> None:
        for host in hosts:
            self.slots.append(self._held.enter_context(self.peer_port.slot(host)))

    def lost(self) -> list[int]:
        return [at for at, slot in enumerate(self.slots) if slot.is_lost]


@contextmanager
def visitors() -> Iterator[Visitors]:
    found = Visitors()
    with found._held:
        yield found


def strangers(number: int) -> list[str]:
    return [f"192.0.2.{at}" for at in range(number)]


async def test_oldest_stranger_is_closed_when_no_slot_is_free() -> None:
    with visitors() as here:
        here.connect(*strangers(SLOTS))
        assert here.lost() == []
        here.connect("198.51.100.1", "198.51.100.2")
        assert here.lost() == [0, 1]


async def test_slots_per_source_are_limited() -> None:
    with visitors() as here:
        here.connect("192.0.2.200", *["192.0.2.201"] * (SOURCE_SLOTS + 3))
        assert here.lost() == [1, 2, 3]
        here.connect("192.0.2.200")
        assert here.lost() == [1, 2, 3]


async def test_slots_are_reserved_for_known_peers() -> None:
    with visitors() as here:
        here.connect(KNOWN)
        here.connect(*strangers(3 * SLOTS))
        assert 0 not in here.lost()
        here.connect(*[KNOWN] * (KNOWN_SLOTS - 1))
        assert 0 not in here.lost()
        here.connect(KNOWN)
        assert 0 in here.lost(), "the oldest connection is closed too"


async def test_introduced_peer_frees_its_slot() -> None:
    peer_port = PeerSlots(set)
    for _ in range(3 * SLOTS):
        with peer_port.slot("192.0.2.1") as slot:
            pass
        assert not slot.is_lost


async def test_waiting_in_a_lost_slot_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    peer_port = PeerSlots(set)
    ended: list[int] = []

    async def wait(number: int) -> None:
        with peer_port.slot("192.0.2.1"):
            await trio.sleep_forever()
        ended.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(SOURCE_SLOTS + 2):
            nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
        assert ended == [0, 1]
        nursery.cancel_scope.cancel()
