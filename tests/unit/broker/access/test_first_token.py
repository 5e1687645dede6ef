"""Tests of the first token of a cluster without identities: the file holds the token that is in the metadata."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from sandq.broker.access.authenticator import REQUIRE
from sandq.broker.access.first_token import PRINCIPAL, RETRY_S, give_first_token
from sandq.model.caller import Caller
from sandq.model.errors import Conflict, NotLeader
from sandq.model.principals import token_hash
from sandq.protocol.requests_access import IdentityPut
from sandq.storage.files import RealFiles


class Node:
    """A node that leads the metadata of a cluster without identities."""

    def __init__(self, data_dir: Path) -> None:
        self.ready = True
        self.file = data_dir / "admin.token"
        self.identities: dict[str, Any] = {}
        self.puts: list[bytes] = []
        self.outcomes: list[Callable[[bytes], None]] = []
        """The outcomes of consecutive proposals. If the list is empty, a proposal succeeds."""
        self._notify: Callable[[], None] = lambda: None
        self._files = RealFiles(data_dir)

    @property
    def status(self) -> Any:
        return SimpleNamespace(identities=dict(self.identities))

    def listen(self, on_status: Callable[[], None], on_ready: Callable[[bool], None]) -> None:
        self._notify = on_status

    async def put(self, request: IdentityPut, caller: Caller) -> None:
        secret_hash = request.changes["secret_hash"]
        self.puts.append(secret_hash)
        (self.outcomes.pop(0) if self.outcomes else self.have)(secret_hash)

    def have(self, secret_hash: bytes) -> None:
        """Put the identity into the metadata."""
        self.identities = {PRINCIPAL: SimpleNamespace(secret_hash=secret_hash)}
        self._notify()

    async def on_maintenance(self, work: Callable[[], Any]) -> Any:
        return work()

    async def run(self) -> None:
        node: Any = self
        with trio.move_on_after(10 * RETRY_S):
            await give_first_token(REQUIRE, node, node, node, self._files, self.file.parent)

    @property
    def files(self) -> list[str]:
        """Names of the files in the data directory."""
        return [path.name for path in self.file.parent.iterdir()]

    @property
    def is_of_file(self) -> bool:
        """Whether the token in the file is accepted."""
        secret_hash: bytes = self.identities[PRINCIPAL].secret_hash
        return secret_hash == token_hash(self.file.read_text().strip())


def lost(secret_hash: bytes) -> None:
    raise NotLeader("another node leads")


async def test_first_token_is_written_to_a_private_file(autojump_clock: Any, tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.run()
    assert node.is_of_file and len(node.puts) == 1
    assert node.files == ["admin.token"]
    assert node.file.stat().st_mode & 0o777 == 0o600


async def test_file_is_written_after_the_token_is_stored(autojump_clock: Any, tmp_path: Path) -> None:
    node = Node(tmp_path)
    seen: list[bool] = []

    def made(secret_hash: bytes) -> None:
        seen.append(node.file.exists())
        node.have(secret_hash)

    node.outcomes = [made]
    await node.run()
    assert seen == [False] and node.is_of_file


@pytest.mark.parametrize("is_made", [True, False])
async def test_a_node_that_ended_in_between_goes_on(autojump_clock: Any, tmp_path: Path, is_made: bool) -> None:
    node = Node(tmp_path)

    def ends(secret_hash: bytes) -> None:
        if is_made:
            node.have(secret_hash)
        raise KeyboardInterrupt

    node.outcomes = [ends]
    with pytest.raises(KeyboardInterrupt):
        await node.run()
    assert not node.file.exists()
    await node.run()
    assert node.is_of_file and len(set(node.puts)) == 1
    assert node.files == ["admin.token"]


async def test_token_with_unknown_outcome_is_not_replaced(autojump_clock: Any, tmp_path: Path) -> None:
    node = Node(tmp_path)

    def made_late(secret_hash: bytes) -> None:
        node.have(node.puts[0])
        raise Conflict("there is such an identity")

    node.outcomes = [lost, made_late]
    await node.run()
    assert node.is_of_file, "the first proposal succeeded in the end"


async def test_token_file_of_losing_node_is_removed(autojump_clock: Any, tmp_path: Path) -> None:
    node = Node(tmp_path)

    def other_was_first(secret_hash: bytes) -> None:
        node.have(bytes(32))
        raise NotLeader("another node leads")

    node.outcomes = [other_was_first]
    await node.run()
    assert node.files == []


async def test_new_token_is_made_when_the_last_identity_is_deleted(autojump_clock: Any, tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        await trio.sleep(RETRY_S)
        first = node.file.read_text()
        node.identities = {}
        node._notify()
    assert node.is_of_file and node.file.read_text() != first, "the previous token was revoked"
