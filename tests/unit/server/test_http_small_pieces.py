"""Who sends a request in small pieces has them read in turns."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from sandq.server.http.connections import PIECES_PER_S, SmallPieces


async def test_all_together_have_so_many_a_second(autojump_clock: MockClock) -> None:
    pieces, read = SmallPieces(), list[tuple[int, float]]()

    async def send(who: int) -> None:
        for _ in range(5):
            await pieces.wait()
            read.append((who, trio.current_time() - began_s))

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for who in range(200):
            nursery.start_soon(send, who)
    assert len(read) == 1000
    # Nobody has a second turn before all had one.
    assert all([sorted([who for who, _ in read[at : at + 200]]) == [*range(200)] for at in range(0, 1000, 200)])
    assert abs(read[-1][1] - 999 / PIECES_PER_S) < 1e-6


async def test_who_is_alone_waits_for_nobody(autojump_clock: MockClock) -> None:
    pieces = SmallPieces()
    began_s = trio.current_time()
    await pieces.wait()
    assert trio.current_time() == began_s
    await pieces.wait()
    assert trio.current_time() - began_s <= 1.001 / PIECES_PER_S
    await trio.sleep(10)
    began_s = trio.current_time()
    await pieces.wait()
    assert trio.current_time() == began_s, "what was not asked for is not owed"
