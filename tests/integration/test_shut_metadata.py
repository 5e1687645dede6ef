"""A metadata change that cannot be applied shuts only the metadata group (ADR 46)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sandq.metadata.commands import Entry
from sandq.metadata.state import MetadataState
from sandq.model.errors import Corruption
from sandq.node import run_node
from sandq.node.running import Serving
from tests.integration.conftest import Dial
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, values
from tests.support.waiting import until_holds

POISON = "poison-topic"


@contextmanager
def planted(step: str) -> Iterator[None]:
    """Let each metadata entry that holds the name fail."""
    apply, write = MetadataState._apply, MetadataState.write_state

    def planted_apply(self: MetadataState, command: Any, now_ms: int, put: Any) -> Any:
        if getattr(command, "name", None) != POISON:
            return apply(self, command, now_ms, put)
        if step == "first":
            raise KeyError("planted")
        result = apply(self, command, now_ms, put)
        if step == "last":
            raise KeyError("planted")
        self.is_struck = True  # type: ignore[attr-defined]
        return result

    def planted_write(self: MetadataState, put: Any) -> None:
        if getattr(self, "is_struck", False):
            raise KeyError("planted")
        write(self, put)

    with (
        patch.object(MetadataState, "_apply", planted_apply),
        patch.object(MetadataState, "write_state", planted_write),
    ):
        yield


async def until_shut(node: Serving) -> None:
    """Wait until the metadata group is shut, and return the index of the entry that shut it."""
    await until_holds(lambda: (failure := node.broker.metadata_host.shut) is not None and failure.is_exact)


@pytest.mark.parametrize("step", ["first", "last", "drain"])
async def test_poison_in_the_metadata_shuts_changes_and_nothing_else(tmp_path: Path, dial: Dial, step: str) -> None:
    with planted(step):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            raw = await dial(node)
            await raw.create(POISON)
            await until_shut(node)
            await client.produce("t", b"goes on")
            refused = await raw.create("later")
            assert refused[2] == "UNAVAILABLE" and "shut" in refused[3]
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await until_shut(node)
            assert "t" in node.broker.metadata.topics
            await client.produce("t", b"after a start")
            info = await client.admin.cluster()
            assert [(row["topic"], row["node"]) for row in info["shut"]] == [(None, "node1")]
            found = await client.admin.skip_entry(None, dry_run=True)
            assert any(POISON in row["text"] for row in found["commands"])
            assert (await client.admin.skip_entry(None))["skipped"]
            await until_holds(lambda: node.broker.metadata_host.ready)
            await client.admin.create_topic("later")
            refused = await (await dial(node)).create(POISON)
            assert refused[2] == "CONFLICT" and "skipped" in refused[3]
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            assert {"t", "later"} <= {topic.name for topic in await client.admin.list_topics()}
            async with client.subscribe("t", group="g") as subscription:
                assert values(await take(subscription, 2)) == [b"goes on", b"after a start"]


async def test_metadata_entry_that_cannot_be_decoded_does_not_end_the_start(tmp_path: Path, dial: Dial) -> None:
    decode = Entry.decode

    def planted_decode(data: bytes) -> Entry:
        if POISON.encode() in data and b"lease" in data:  # as proposed, not as in the replacement entry
            raise Corruption("planted")
        return decode(data)

    with patch.object(Entry, "decode", planted_decode):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            await (await dial(node)).create(POISON)
            await until_shut(node)
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await until_shut(node)
            await client.produce("t", b"goes on")
            found = await client.admin.skip_entry(None)
            assert [row["kind"] for row in found["commands"]] == ["?"]
            await until_holds(lambda: node.broker.metadata_host.ready)
            await client.admin.create_topic("later")
