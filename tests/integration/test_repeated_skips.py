"""Several entries, or commands, that cannot be applied are skipped one after the other (ADR 46)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.broker.replication.raft_group import RaftGroup
from sandq.client.client import Client
from sandq.model.batch import Column, encode
from sandq.model.errors import Conflict
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.partition import commands as c
from tests.support.nodes.planted import POISON, STEPS, Plan, planted
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, values
from tests.support.waiting import until_holds


def host_of(node: Serving) -> RaftGroup:
    return node.broker.catalog.partition("t", 0).raft_group


def append(value: bytes) -> c.Append:
    return c.Append(encode({Column.VALUE: [value]}))


def submit(host: RaftGroup, entries: Sequence[Sequence[bytes]]) -> None:
    """Propose these values in separate entries, all before the first entry is applied."""
    most = host.requests._limits.entry_messages  # declared size of the first command, so that it starts a new entry
    for entry in entries:
        for at, value in enumerate(entry):
            host.submit(append(value), lambda result: None, messages=0 if at else most)


async def until_shut_at(node: Serving, index: int) -> None:
    """Wait until the replica is shut at an entry, and will not be opened again soon."""

    def is_shut() -> bool:
        host = host_of(node)
        return host.shut is not None and host.shut.index == index and not host.reopens

    await until_holds(is_shut)


async def skip(client: Client, **arguments: Any) -> int:
    index: int = (await client.admin.skip_entry("t", 0, **arguments))["index"]
    return index


@pytest.mark.parametrize("step", [step for step in STEPS if step not in ("status", "drain")])
async def test_two_failing_entries_are_skipped_consecutively(tmp_path: Path, step: str) -> None:
    """The second entry has more commands than the number of skips that a partition remembers."""
    with planted(Plan(step)):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            await client.produce("t", b"before")
            submit(host_of(node), [[POISON + b" 1"], [POISON + b" 2 %d" % at for at in range(80)], [b"behind"]])
            await until_holds(lambda: host_of(node).shut is not None)
            first = await skip(client)
            await until_shut_at(node, first + 1)
            assert await skip(client, index=first + 1, commands=list(range(80))) == first + 1
            await until_holds(lambda: host_of(node).ready)
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await until_holds(lambda: host_of(node).ready)
            async with client.subscribe("t", group="g") as subscription:
                assert values(await take(subscription, 2)) == [b"before", b"behind"]


async def test_two_failing_commands_of_an_entry_are_skipped_consecutively(tmp_path: Path) -> None:
    with planted(Plan("first")):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            submit(host_of(node), [[POISON + b" 1", b"good", POISON + b" 2"]])
            await until_holds(lambda: host_of(node).shut is not None)
            index = await skip(client, commands=[0])
            await until_shut_at(node, index)
            assert await skip(client, commands=[2]) == index
            await until_holds(lambda: host_of(node).ready)
            async with client.subscribe("t", group="g") as subscription:
                assert values(await take(subscription, 1)) == [b"good"]


async def test_second_skip_of_an_entry_is_refused_until_the_first_is_followed(tmp_path: Path) -> None:
    """Two operators skip at the same time, or one operator repeats the skip after a timeout."""
    with planted(Plan("first")):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            submit(host_of(node), [[POISON]])
            await until_holds(lambda: host_of(node).shut is not None)
            outcomes: list[Any] = []

            async def skip_once() -> None:
                try:
                    outcomes.append(await skip(client))
                except Conflict as error:
                    outcomes.append(error.message)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(skip_once)
                nursery.start_soon(skip_once)
            assert sorted([type(outcome).__name__ for outcome in outcomes]) == ["int", "str"], outcomes
            await until_holds(lambda: host_of(node).ready)


async def test_skip_of_an_entry_refuses_only_the_command_that_failed_when_it_comes_again(tmp_path: Path) -> None:
    """The leader repeatedly proposes upkeep and expiry, and clients repeat requests that were merged into the same
    entry."""
    beside = [c.Upkeep(), c.Expire(), c.Touch(["g"]), c.OpenGroup("g", "earliest"), append(b"beside")]
    with planted(Plan("first")):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            host = host_of(node)
            for at, command in enumerate([append(POISON), *beside]):
                host.submit(command, lambda result: None, messages=0 if at else host.requests._limits.entry_messages)
            await until_holds(lambda: host.shut is not None)
            await skip(client)
            await until_holds(lambda: host_of(node).ready)
            for command in beside:
                await host_of(node).call(command)
            with pytest.raises(Conflict, match="skipped"):
                await host_of(node).call(append(POISON))
