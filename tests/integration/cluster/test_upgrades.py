"""A cluster is upgraded node by node: feature levels, with nodes that know other ranges of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.metadata.commands import Balance
from sandq.model.errors import Conflict, DuplicateKey, InvalidRequest, StartupError, TooLate
from sandq.model.features import KNOWN, Levels
from sandq.node import run_node
from sandq.partition.commands import Touch
from sandq.partition.levels import SCOPED_KEYS, UNIQUE_IN_KEY
from tests.support.nodes.found import FoundNodes, found_nodes, refusals
from tests.support.nodes.small_node import small_config
from tests.support.nodes.three import leading
from tests.support.waiting import PATIENCE_S, until_holds

NAMES = ("node1", "node2", "node3")
NEXT = Levels(KNOWN.lowest, KNOWN.highest + 1)
OLD = Levels(1, 1)
"""What v0.2.0 knows."""


async def restart(nodes: FoundNodes, name: str, **options: Any) -> None:
    await nodes.stop(name)
    await nodes.start(name, **options)


async def until_at(nodes: FoundNodes, level: int) -> None:
    await until_holds(lambda: {node.broker.node_log.feature_level for node in nodes.running.values()} == {level})


async def until_registered(nodes: FoundNodes, name: str, levels: Levels) -> None:
    await until_holds(lambda: all(node.broker.metadata.nodes[name].levels == levels for node in nodes.running.values()))


async def test_a_cluster_that_is_told_to_wait_can_go_back_until_it_is_finalized(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES[:2], CLUSTER__FINALIZE="manual") as nodes, nodes.connect() as client:
        await until_at(nodes, KNOWN.highest)  # it had no topic
        await client.admin.create_topic("t", replicas=2)
        await restart(nodes, "node1", levels=NEXT)
        await until_registered(nodes, "node1", NEXT)
        with pytest.raises(Conflict, match=f"node2 knows {KNOWN}"):
            await client.admin.finalize()
        await restart(nodes, "node2", levels=NEXT)
        await until_registered(nodes, "node2", NEXT)
        info = await client.admin.cluster()
        assert (info["feature_level"], info["feature_level_next"]) == (KNOWN.highest, NEXT.highest)
        await restart(nodes, "node2")  # back to the version before
        await until_registered(nodes, "node2", KNOWN)
        await client.produce("t", "read by both")
        await restart(nodes, "node2", levels=NEXT)
        await until_registered(nodes, "node2", NEXT)
        assert await client.admin.finalize(dry_run=True) == (KNOWN.highest, NEXT.highest)
        await until_at(nodes, KNOWN.highest)
        assert await client.admin.finalize() == (KNOWN.highest, NEXT.highest)
        await until_at(nodes, NEXT.highest)
        assert (await client.admin.cluster())["feature_level_next"] is None


async def test_the_level_rises_when_the_last_node_was_upgraded(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await until_at(nodes, KNOWN.highest)
        for name in NAMES[:2]:
            await restart(nodes, name, levels=NEXT)
            await until_registered(nodes, name, NEXT)
            await client.produce("t", f"while {name} is upgraded")
        await until_at(nodes, KNOWN.highest)

        # Upgraded and back again: nothing of the new version was stored.
        await restart(nodes, "node2")
        await until_registered(nodes, "node2", KNOWN)
        for name in NAMES[1:]:
            await restart(nodes, name, levels=NEXT)
        await until_at(nodes, NEXT.highest)
        assert (await client.admin.cluster())["feature_level"] == NEXT.highest
        assert [row["feature_levels"] for row in (await client.admin.cluster())["nodes"]] == [list(NEXT)] * 3
        await client.produce("t", "afterwards")

        # There is no way back then: its log says so, if its stores do not yet.
        await nodes.stop("node3")
        with pytest.raises(BaseExceptionGroup) as failure:
            async with run_node(nodes.config("node3")):
                raise AssertionError("it serves")
        assert failure.group_contains(StartupError, match=f"of feature level {NEXT.highest}, and this version knows")


async def test_partitions_come_to_the_level_with_the_last_node(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, *NAMES[:2], levels=OLD) as nodes:
        async with nodes.connect() as client:
            await client.admin.create_topic("t", replicas=2)
            await client.admin.create_topic("config", kind="compacted", replicas=2)
            await restart(nodes, "node1")
            await until_registered(nodes, "node1", KNOWN)
            await nodes.until_led()
            waiting = await client.produce("t", "while node2 knows level 1 alone")
            await client.leases("t", "g").nack(await client.leases("t", "g").take(1, wait="30s"), delay="1h")
            with pytest.raises(TooLate) as refused:
                await client.messages("t").cancel(waiting)
            assert refused.value.details["state"] == "leased", "as that version says it"
            await client.kv("config").put("a", "b")
            assert {node.broker.node_log.feature_level for node in nodes.running.values()} == {1}
            assert levels_of(nodes) == {1}
            await restart(nodes, "node2")
            await until_at(nodes, KNOWN.highest)
            await until_holds(lambda: levels_of(nodes) == {KNOWN.highest})
            await client.admin.create_topic("new", partitions=3, replicas=2)
            await until_holds(lambda: levels_of(nodes) == {KNOWN.highest})
            assert await client.messages("t").cancel(waiting) == waiting, "it is its producer's while it waits"
        await restart(nodes, "node1")
        await until_holds(lambda: levels_of(nodes) == {KNOWN.highest})


async def test_unique_keys_are_their_tenants_once_it_is_known(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, NAMES[0], levels=Levels(1, SCOPED_KEYS - 1)) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", kind="fair")
        messages = client.messages("t")
        named = [await client.produce("t", "a", tenant="acme", unique_key=key, delay="1h") for key in ("k", "l", "m")]
        with pytest.raises(DuplicateKey):
            await client.produce("t", "b", tenant="beta", unique_key="k", delay="1h")
        assert await messages.cancel(unique_key="l", tenant="acme") == named[1]
        await messages.move(unique_key="m", tenant="acme", delay="2h")

        await restart(nodes, NAMES[0])
        await until_holds(lambda: levels_of(nodes) == {KNOWN.highest})
        with pytest.raises(DuplicateKey):
            await client.produce("t", "b", tenant="beta", unique_key="k", delay="1h")
        assert await messages.cancel(unique_key="k", tenant="acme") == named[0]
        for tenant in ("acme", "beta"):
            named.append(await client.produce("t", tenant, tenant=tenant, unique_key="k", delay="1h"))
            assert (await messages.get(unique_key="k", tenant=tenant)).value == tenant.encode()
        assert len({*named}) == 5


async def test_unique_keys_are_unique_within_keys_once_it_is_known(tmp_path: Path) -> None:
    levels = Levels(1, UNIQUE_IN_KEY - 1)
    async with found_nodes(tmp_path, NAMES[0], levels=levels) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", partitions=2)
        messages = client.messages("t")
        equal = [await client.produce("t", "a", key=key, unique_key=key, delay="1h") for key in ("k", "l")]
        with pytest.raises(InvalidRequest, match=f"needs feature level {UNIQUE_IN_KEY}: the partition is at level"):
            await client.produce("t", "b", key="k", unique_key="i", delay="1h")
        with pytest.raises(Conflict):
            await messages.cancel(unique_key="k", key="k")
        assert (await messages.get(unique_key="k", key="k")).id == equal[0]

        await restart(nodes, NAMES[0])
        await until_holds(lambda: levels_of(nodes) == {KNOWN.highest})
        for named in ({"key": "k"}, {}):
            with pytest.raises(DuplicateKey):
                await client.produce("t", "b", unique_key="k", delay="1h", **named)
        assert await messages.cancel(unique_key="l", key="l") == equal[1]
        pairs = [await client.produce("t", "b", key=key, unique_key="i", delay="1h") for key in ("k", "l")]
        assert [await messages.cancel(unique_key="i", key=key) for key in ("k", "l")] == pairs


def levels_of(nodes: FoundNodes) -> set[int]:
    """Of all replicas of all partitions."""
    hosts = [host for node in nodes.running.values() for host in node.broker.node_log.hosts.values()]
    return {host.status.level for host in hosts if host.number != METADATA_GROUP}


@pytest.mark.parametrize("is_clean", [True, False])
async def test_data_of_a_level_that_is_not_known_is_refused(tmp_path: Path, is_clean: bool) -> None:
    """After a clean stop the stores hold the level; else the log does, from which it is applied."""
    config = small_config(tmp_path)
    with trio.CancelScope() as scope:
        async with run_node(config, levels=NEXT) as node:
            await until_holds(lambda: node.broker.node_log.feature_level == NEXT.highest)
            if not is_clean:
                scope.cancel()
                await trio.sleep_forever()
    with pytest.raises(BaseExceptionGroup) as failure, trio.fail_after(PATIENCE_S):
        async with run_node(config):
            await trio.sleep_forever()
    assert failure.group_contains(StartupError, match=f"of feature level {NEXT.highest}, and this version knows")


async def test_a_version_that_does_not_know_the_level_is_not_let_in(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1") as nodes:
        await restart(nodes, "node1", levels=NEXT)
        await until_at(nodes, NEXT.highest)
        with refusals() as count:
            nodes.launch("node2")
            await until_holds(lambda: count("level") >= 1)
        assert set(nodes.registered("node1")) == {"node1"}
        await nodes.stop("node2")
        await nodes.start("node2", levels=NEXT)
        await nodes.until_registered("node1", "node2")


async def test_what_needs_a_higher_level_is_refused_until_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Balance, "feature_level", NEXT.highest)
    monkeypatch.setattr(Touch, "feature_level", NEXT.highest)
    async with found_nodes(tmp_path, "node1") as nodes:
        async with nodes.connect("node1") as client:
            await client.admin.create_topic("t")
        await nodes.until_led()
        metadata, partition = (await leading(nodes)).broker.metadata_host, nodes.host("node1")
        for group, command in ((metadata, Balance(("node1",))), (partition, Touch(()))):
            with pytest.raises(Conflict, match=f"needs feature level {NEXT.highest}, and the cluster is at"):
                await group.call(command)
        assert metadata.status.balanced == ()
        await restart(nodes, "node1", levels=NEXT)
        await until_at(nodes, NEXT.highest)
        await nodes.until_led()
        await (await leading(nodes)).broker.metadata_host.call(Balance(("node1",)))
        await nodes.host("node1").call(Touch(()))


@pytest.mark.parametrize("kind", ["priority", "fair"])
async def test_kinds_that_not_every_node_knows_are_refused(tmp_path: Path, kind: str) -> None:
    async with found_nodes(tmp_path, "node1", levels=Levels(1, 6)) as nodes, nodes.connect() as client:
        await until_at(nodes, 6)
        with pytest.raises(Conflict, match="needs feature level 7, and the cluster is at 6"):
            await client.admin.create_topic("t", kind=kind)
        await client.admin.create_topic("t")


async def test_limits_for_keys_that_not_every_node_knows_are_refused(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", levels=Levels(1, 6)) as nodes, nodes.connect() as client:
        await until_at(nodes, 6)
        with pytest.raises(Conflict, match="needs feature level 7, and the cluster is at 6"):
            await client.admin.create_topic("t", max_in_flight_per_key=2)
        await client.admin.create_topic("t", ordering="key")
        async with client.subscribe("t", group="g"):
            pass
        with pytest.raises(Conflict, match="needs feature level 7, and the cluster is at 6"):
            await client.admin.update_group("t", "g", max_in_flight_per_key=1)
        await client.admin.update_group("t", "g", max_attempts=1)


async def test_dead_letters_by_id_error_and_key_that_not_every_node_knows_are_refused(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", levels=Levels(1, 10)) as nodes, nodes.connect() as client:
        await until_at(nodes, 10)
        await client.admin.create_topic("t", max_attempts=1)

        async def die() -> str:
            async with client.subscribe("t", group="g") as subscription:
                message = await anext(subscription)
                await message.nack(error="boom")
                return str(message.id)

        await client.produce("t", b"m")
        one, dead = await die(), client.dead("t", "g")
        for ask in (
            lambda: dead.redrive_ids([one]),
            lambda: dead.purge_ids([one]),
            lambda: dead.redrive(error="boom"),
            lambda: dead.purge(key_prefix="k"),
        ):
            with pytest.raises(Conflict, match="needs feature level 11, and the cluster is at 10"):
                await ask()
        assert await dead.redrive() == (1, 1, 0), "all as ever"
        assert await die() == one
        assert [(letter.life, len(letter.history)) async for letter in dead.list(error="boom")] == [(1, 1)]
        await restart(nodes, "node1")
        await until_at(nodes, KNOWN.highest)
        await nodes.until_led()
        await until_holds(lambda: nodes.host("node1").status.level == KNOWN.highest)
        assert await dead.redrive_ids([one]) == [(one, "redriven", None)]
        assert await die() == one
        assert [(letter.life, len(letter.history)) async for letter in dead.list()] == [(2, 2)]


async def test_ends_that_not_every_node_knows_are_refused(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", levels=Levels(1, 10)) as nodes, nodes.connect() as client:
        await until_at(nodes, 10)
        await client.admin.create_topic("t", backoff={"kind": "none"})
        await client.produce("t", b"m")
        leases = client.leases("t", "g")
        (message,) = await leases.take(wait="1m")
        for ask in (
            lambda: leases.dead([message], "410 gone"),
            lambda: leases.nack([message], count=False),
            lambda: client.admin.create_topic("u", max_snoozes=1),
            lambda: client.admin.update_topic("t", max_snoozes=1),
            lambda: client.admin.update_group("t", "g", max_snoozes=None),
        ):
            with pytest.raises(Conflict, match="needs feature level 11, and the cluster is at 10"):
                await ask()
        assert await leases.nack([message]) == [], "it is held as before"
        await restart(nodes, "node1")
        await until_at(nodes, KNOWN.highest)
        await nodes.until_led()
        (message,) = await leases.take(wait="1m")
        assert (message.attempt, await leases.dead([message], "410 gone")) == (2, [])
        assert await client.dead("t", "g").counts() == {"rejected": 1}


async def test_sending_to_other_topics_is_refused_while_not_every_node_knows_it(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", levels=Levels(1, 11)) as nodes, nodes.connect() as client:
        await until_at(nodes, 11)
        for topic in ("t", "failed"):
            await client.admin.create_topic(topic, max_attempts=1)
        await client.produce("t", b"m")
        leases = client.leases("t", "g")
        (message,) = await leases.take(wait="1m")
        for ask in (
            lambda: leases.ack([message], then=[sandq.Outgoing(b"n", "failed")]),
            lambda: client.admin.create_topic("u", dead_letter_topic="failed"),
            lambda: client.admin.update_topic("t", dead_letter_topic="failed"),
        ):
            with pytest.raises(Conflict, match="needs feature level 12, and the cluster is at 11"):
                await ask()
        await restart(nodes, "node1")
        await until_at(nodes, KNOWN.highest)
        await nodes.until_led()
        await client.admin.update_topic("t", dead_letter_topic="failed")
        assert await leases.ack([message], then=[sandq.Outgoing(b"n", "failed")]) == [], "it is held as before"
        (sent,) = await client.leases("failed", "g").take(wait="1m")
        assert sent.value == b"n"


async def test_schedules_and_limits_of_groups_that_not_every_node_knows_are_refused(tmp_path: Path) -> None:
    async with found_nodes(tmp_path, "node1", levels=Levels(1, 7)) as nodes, nodes.connect() as client:
        await until_at(nodes, 7)
        await client.admin.create_topic("t")
        for ask in (
            lambda: client.schedules("t").create("s", b"", every="1h"),
            lambda: client.admin.limit_group("t", "g", max_in_flight=1),
        ):
            with pytest.raises(Conflict, match="needs feature level 8, and the cluster is at 7"):
                await ask()
        assert [row async for row in client.schedules("t").list()] == []
        await restart(nodes, "node1")
        await until_at(nodes, KNOWN.highest)
        await nodes.until_led()
        await client.schedules("t").create("s", b"", every="1h")
        await client.admin.limit_group("t", "g", max_in_flight=1)


async def test_a_push_that_not_every_node_knows_is_refused(tmp_path: Path) -> None:
    secret = sandq.new_push_secret()
    async with found_nodes(tmp_path, "node1", levels=Levels(1, 12)) as nodes, nodes.connect() as client:
        await until_at(nodes, 12)
        await client.admin.create_topic("t")
        for ask in (
            lambda: client.admin.set_push("t", "g", "https://shop.example/", secrets=secret),
            lambda: client.admin.remove_push("t", "g"),
        ):
            with pytest.raises(Conflict, match="needs feature level 13, and the cluster is at 12"):
                await ask()
        assert await client.admin.pushes("t") == []
        await restart(nodes, "node1")
        await until_at(nodes, KNOWN.highest)
        await nodes.until_led()
        await client.admin.set_push("t", "g", "https://shop.example/", secrets=secret)
        assert [push["url"] for push in await client.admin.pushes("t")] == ["https://shop.example/"]
