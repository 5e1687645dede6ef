"""Tests of accounts of the memory budget: the order in which memory is granted, and its release."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sandq.broker.memory_budget import Account, MemoryBudget


async def _reserve(account: Account, size: int, got: list[int]) -> None:
    await account.reserve(size)
    got.append(size)


async def test_memory_is_granted_in_order_of_request() -> None:
    account, got = Account(100), list[int]()
    await account.reserve(80)
    async with trio.open_nursery() as nursery:
        for size in (50, 10, 20):
            nursery.start_soon(_reserve, account, size, got)
            await wait_all_tasks_blocked()
        assert got == [] and account.is_waited_for, (
            "the last two requests would fit, but the request before them does not"
        )
        account.give_back(40)
        await wait_all_tasks_blocked()
        assert sorted(got) == [10, 50] and account.bytes == 100
        account.give_back(40)
    assert sorted(got) == [10, 20, 50] and account.bytes == 80 and not account.is_waited_for


async def test_reservation_larger_than_the_share_gets_it_alone() -> None:
    account, got = Account(100), list[int]()
    await account.reserve(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_reserve, account, 500, got)
        await wait_all_tasks_blocked()
        assert got == []
        account.give_back(1)
    assert account.bytes == 500


async def test_cancelled_waiter_holds_nothing_and_delays_no_other() -> None:
    account, got = Account(100), list[int]()
    await account.reserve(90)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(account.reserve, 50)
                await wait_all_tasks_blocked()
                nursery.start_soon(_reserve, account, 10, got)
                await wait_all_tasks_blocked()
                scope.cancel()
        await wait_all_tasks_blocked()
    assert got == [10] and account.bytes == 100


async def test_waiter_continues_when_an_eighth_of_the_account_is_free() -> None:
    account, went = Account(80), trio.Event()

    async def wait() -> None:
        await account.wait_for_capacity()
        went.set()

    account.take(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        account.give_back(29)
        await wait_all_tasks_blocked()
        assert account.bytes == 71 and not went.is_set() and account.is_waited_for
        account.give_back(1)
    assert went.is_set() and not account.is_waited_for


async def test_clients_of_one_address_leave_a_quarter_to_others() -> None:
    account, got = Account(100), list[int]()
    one, other = account.of("10.0.0.1"), account.of("10.0.0.2")
    assert account.of("10.0.0.1") is one
    await one.reserve(70)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_reserve, one, 10, got)
        await wait_all_tasks_blocked()
        assert got == [] and one.is_waited_for
        nursery.start_soon(_reserve, other, 20, got)
        await wait_all_tasks_blocked()
        assert got == [20], "the request must not wait for an address that has used its share"
        assert (one.bytes, other.bytes, account.bytes) == (70, 20, 90)
        one.give_back(5)
    assert got == [20, 10] and (one.bytes, other.bytes, account.bytes) == (75, 20, 95)
    assert one.is_full and not other.is_full and not account.is_full
    other.take(5)
    assert other.is_full, "the whole budget is used"


async def test_waiter_continues_when_an_eighth_of_its_address_share_is_free() -> None:
    account, went = Account(100), trio.Event()
    share = account.of("10.0.0.1")

    async def wait() -> None:
        await share.wait_for_capacity()
        went.set()

    share.take(80)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        share.give_back(14)
        await wait_all_tasks_blocked()
        assert share.bytes == 66 and not went.is_set() and share.is_waited_for and not account.is_waited_for
        share.give_back(1)
    assert went.is_set() and not share.is_waited_for


def test_held_bytes_count_for_the_address_and_the_account() -> None:
    account = Account(100)
    share = account.of("10.0.0.1")
    share.hold(60)
    assert (share.bytes, account.bytes) == (60, 60)
    share.give_back(60)
    assert (share.bytes, account.bytes) == (0, 0)


@pytest.mark.parametrize("limit", [256 << 20, 1 << 30])
def test_shares_are_at_most_the_limit(limit: int) -> None:
    memory = MemoryBudget(limit)
    memory.measure("logs", 1 / 4, lambda: 7)
    memory.requests.take(5)
    assert sum(account.share_bytes for account in memory.accounts.values()) <= limit
    assert {name: account.bytes for name, account in memory.accounts.items()} == {
        **dict.fromkeys(("look_aheads", "answers", "watchers"), 0),
        "requests": 5,
        "logs": 7,
    }
