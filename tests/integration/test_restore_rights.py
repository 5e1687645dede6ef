"""A restore has only the rights of its caller: it cannot reach topics or quotas of others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from sandq.model.batch import Column
from sandq.model.outbox import DEAD_LETTER
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.partition.base import rows
from sandq.partition.outbox import MESSAGE, Batch, Letter
from sandq.protocol.frames import Type
from tests.integration.test_identities import give, greet
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config

MINE = ("manage:mine*", "produce:mine*", "read:mine*", "consume:mine*")
OLD = 77


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Serving]:
    async with run_node(small_config(tmp_path, SECURITY__AUTHENTICATION="require")) as serving:
        yield serving


@pytest.fixture
async def admin(strict: Serving) -> AsyncIterator[RawClient]:
    raw, _ = await greet(strict, token=await give(strict, "boss", "admin"))
    assert (await raw.create("victim"))[0] == Type.REPLY
    yield raw
    await raw.stream.aclose()


@pytest.fixture
async def limited(strict: Serving, admin: RawClient) -> AsyncIterator[RawClient]:
    raw, _ = await greet(strict, token=await give(strict, "op", "cluster", *MINE))
    yield raw
    await raw.stream.aclose()


async def rows_of(raw: RawClient, topic: str) -> dict[bytes, bytes]:
    """Return the rows of partition 0 in the form of a backup."""
    begun = await raw.call(Type.BACKUP_BEGIN, topic, 0)
    assert begun[0] == Type.REPLY, begun
    found: dict[bytes, bytes] = {}
    after, is_last = None, False
    while not is_last:
        _, _, after, is_last, data = await raw.call(Type.BACKUP_READ, topic, 0, begun[2]["export"], after)
        flat = msgpack.unpackb(data)
        found |= dict(zip(flat[::2], flat[1::2], strict=True))
    await raw.call(Type.BACKUP_END, topic, 0, begun[2]["export"])
    return found


async def restored(
    raw: RawClient,
    topic: str,
    stored: dict[bytes, bytes],
    targets: list[list[int]],
    dead_letter_topic: str | None = None,
    owner: str | None = None,
) -> list[Any]:
    """Restore a topic of one partition; return the reply to RESTORE_OPEN."""
    chunk = msgpack.packb([part for row in sorted(stored.items()) for part in row])
    for request in (
        (Type.RESTORE_TOPIC, topic, "timer", 1, 1, 1, {"max_attempts": 1}, owner, "r"),
        (Type.RESTORE_BEGIN, topic, 0, "r", targets),
        (Type.RESTORE_ROWS, topic, 0, "r", 0, chunk),
        (Type.RESTORE_END, topic, 0, "r", 1),
    ):
        answer = await raw.call(*request)
        assert answer[0] == Type.REPLY, answer
    return await raw.call(Type.RESTORE_OPEN, topic, "r", dead_letter_topic)


async def source(raw: RawClient) -> dict[bytes, bytes]:
    assert (await raw.create("mine"))[0] == Type.REPLY
    assert (await raw.produce(b"x", topic="mine"))[0] == Type.REPLY
    return await rows_of(raw, "mine")


async def test_a_dead_letter_topic_needs_produce(limited: RawClient) -> None:
    stored = await source(limited)
    answer = await restored(limited, "mine-again", stored, [], "victim")
    assert answer[2] == "FORBIDDEN" and "produce" in answer[3], answer
    assert (await limited.call(Type.RESTORE_OPEN, "mine-again", "r", "mine"))[0] == Type.REPLY


def with_letter(stored: dict[bytes, bytes], now_ms: int) -> dict[bytes, bytes]:
    """Rows of a partition with a message in the outbox for another topic."""
    letter = Letter(MESSAGE, 1, bytes(16), 0, {int(Column.VALUE): b"injected"})
    line = OLD.to_bytes(4, "big") + bytes(2)
    state = rows.unpack(stored[rows.STATE_KEY])
    size = len(rows.pack(*letter))
    state[14] = [1, 1, size, 2, now_ms]
    return stored | {
        rows.STATE_KEY: rows.pack(*state),
        rows.OUTBOX + line + (1).to_bytes(8, "big"): rows.pack(*letter),
        rows.OUTBOX_BATCH + line: rows.pack(*Batch(now_ms, 1, 1, "", "")),
    }


async def test_rows_of_the_outbox_reach_no_topic_without_produce(
    strict: Serving, admin: RawClient, limited: RawClient
) -> None:
    stored = await source(limited)
    now_ms = strict.broker.clock.now_ms()
    numbers = {name: topic.number for name, topic in strict.broker.metadata.topics.items()}
    answer = await restored(limited, "mine-again", with_letter(stored, now_ms), [[OLD, numbers["victim"]]])
    assert answer[0] == Type.REPLY, answer
    host = strict.broker.catalog.partition("mine-again", 0).raft_group
    assert numbers["victim"] not in {target.topic for target in _targets(host.status)}
    assert strict.broker.catalog.partition("victim", 0).raft_group.status.messages == 0
    # An identity with `produce` on that topic may restore such a message.
    answer = await restored(admin, "again", with_letter(stored, now_ms), [[OLD, numbers["mine"]]])
    assert answer[0] == Type.REPLY, answer


def _targets(status: Any) -> list[Any]:
    return [] if status.outbox is None else [*status.outbox.batches]


async def test_a_restored_topic_counts_for_the_caller(strict: Serving, admin: RawClient, limited: RawClient) -> None:
    await give(strict, "victim", "admin", quota={"topics": 1})
    stored = await source(limited)
    for topic, raw, owner in (("mine-1", limited, "token:op"), ("other", admin, "token:victim")):
        assert (await restored(raw, topic, stored, [], owner="token:victim"))[0] == Type.REPLY
        assert strict.broker.metadata.topics[topic].owner == owner
    assert DEAD_LETTER not in strict.broker.metadata.topics["mine-1"].settings
