"""Who is let in, by real sockets: tokens, and identities that come, change and go."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from sandq.model.caller import NODE
from sandq.model.principals import token_hash, token_text
from sandq.node import Serving, run_node
from sandq.protocol.frames import Type
from sandq.protocol.requests_access import IdentityPut
from tests.integration.conftest import until_risen
from tests.support.nodes.raw_client import Frame, RawClient
from tests.support.nodes.small_node import small_config

pytestmark = pytest.mark.usefixtures("node_time")


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Serving]:
    """A node that lets nobody in who does not say who it is."""
    async with run_node(small_config(tmp_path, SECURITY__AUTHENTICATION="require")) as serving:
        await until_risen(serving)
        yield serving


async def give(node: Serving, name: str, *grants: str, **changes: object) -> str:
    """A token of this name with these grants, made by the node itself."""
    text = token_text(secrets.token_bytes(32))
    fields = {"grants": list(grants), "secret_hash": token_hash(text), **changes}
    await node.identities.put(IdentityPut(f"token:{name}", True, fields), NODE)
    return text


async def greet(node: Serving, **options: object) -> tuple[RawClient, Frame]:
    raw = await RawClient.connect(node.client_port, hello=False)
    return raw, await raw.call(Type.HELLO, 1, "raw", options)


async def test_nobody_comes_in_without_a_token(strict: Serving) -> None:
    raw, answer = await greet(strict)
    assert answer[0] == Type.ERROR and answer[2] == "UNAUTHENTICATED"
    await raw.rest()
    await trio.aclose_forcefully(raw.stream)


async def test_who_has_a_token_is_told_who_it_is(strict: Serving) -> None:
    token = await give(strict, "app", "writer:app.*", expires_ms=10**14)
    raw, answer = await greet(strict, token=token)
    assert answer[0] == Type.REPLY and answer[5]["authentication"] == 2
    _, _, principal, grants, expires_ms, quota = await raw.call(Type.IDENTIFY, None, None)
    assert (principal, expires_ms, quota) == ("token:app", 10**14, {})
    assert sorted(grants) == ["consume:app.*", "produce:app.*", "read:app.*"]
    await trio.aclose_forcefully(raw.stream)
