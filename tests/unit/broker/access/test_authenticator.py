"""Tests of the authenticator: it identifies callers by the current metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from sandq.broker.access.authenticator import ASK_S, FRESH_S, Authenticator
from sandq.metadata.records import IdentityRecord
from sandq.model.errors import Unauthenticated, Unavailable
from sandq.model.principals import check_principal, token_hash, token_text
from sandq.model.quotas import Quota

TOKEN = token_text(bytes(32))


def record(principal: str, *grants: str, secret: str | None = None, **more: Any) -> IdentityRecord:
    fields = {"created_ms": 0, "expires_ms": None, "quota": {}, "note": ""} | more
    return IdentityRecord(principal, grants, None if secret is None else token_hash(secret), **fields)


class Node:
    """The metadata on a node, and the index that it has reached."""

    def __init__(self, *records: IdentityRecord, mode: str = "require", roles: dict[str, Any] | None = None) -> None:
        self.now_ms = 1000
        self.asked = 0
        self.is_cut_off = False
        self.is_alone = False
        self.set(*records, roles=roles)
        catalog: Any = self
        self.authenticator = Authenticator(mode, catalog, lambda: self.now_ms)

    @property
    def known_view(self) -> Any:
        return self.view

    def set(self, *records: IdentityRecord, roles: dict[str, Any] | None = None) -> None:
        identities = {one.principal: one for one in records}
        self.view: Any = SimpleNamespace(identities=identities, roles=roles or {})

    async def catch_up(self) -> None:
        self.asked += 1
        if self.is_cut_off:
            await trio.sleep_forever()


async def test_a_token_is_found_by_its_hash() -> None:
    node = Node(record("token:app", "team", secret=TOKEN, quota={"topics": 3}), roles={"team": ("read:a.*",)})
    login = await node.authenticator.identify(TOKEN, None)
    assert login is not None
    assert (login.principal, [*map(str, login.access.grants)]) == ("token:app", ["read:a.*"])
    assert login.quota == Quota(topics=3)
    with pytest.raises(Unauthenticated):
        await node.authenticator.identify(TOKEN[:-1] + "x", None)
    assert TOKEN not in repr(login) and "secret" not in repr(login)


async def test_login_is_checked_again_after_metadata_changes() -> None:
    node = Node(record("token:app", "read", secret=TOKEN))
    login = await node.authenticator.identify(TOKEN, None)
    assert login is not None and node.authenticator.again(login) == login
    node.set(record("token:app", "read", "produce", secret=TOKEN))
    assert len(node.authenticator.again(login).access.grants) == 2
    node.set(record("token:app", "read", secret=token_text(b"y" * 32)))
    with pytest.raises(Unauthenticated, match="revoked"):
        node.authenticator.again(login)
    node.set()
    with pytest.raises(Unauthenticated, match="revoked"):
        node.authenticator.again(login)


async def test_changed_role_changes_the_rights() -> None:
    app = record("token:app", "team", secret=TOKEN)
    node = Node(app, roles={"team": ("read",)})
    login = await node.authenticator.identify(TOKEN, None)
    node.set(app, roles={"team": ("produce",)})
    assert login is not None and [*map(str, node.authenticator.again(login).access.grants)] == ["produce"]


async def test_expired_token_is_refused() -> None:
    node = Node(record("token:app", "read", secret=TOKEN, expires_ms=2000))
    login = await node.authenticator.identify(TOKEN, None)
    node.now_ms = 2000
    assert login is not None
    for work in (lambda: node.authenticator.again(login),):
        with pytest.raises(Unauthenticated, match="expired"):
            work()
    with pytest.raises(Unauthenticated, match="expired"):
        await node.authenticator.identify(TOKEN, None)


async def test_a_certificate_is_known_by_its_name() -> None:
    node = Node(record("cert:till", "read"))
    login = await node.authenticator.identify(None, "till")
    assert login is not None and login.principal == "cert:till"
    with pytest.raises(Unauthenticated, match="cert:other"):
        await node.authenticator.identify(None, "other")
    assert await Node(mode="accept").authenticator.identify(None, "other") is None
    assert await node.authenticator.identify(None, None) is None


async def test_access_is_unlimited_if_authentication_is_off() -> None:
    node = Node(record("token:app", "read", secret=TOKEN), mode="off")
    login = await node.authenticator.identify(TOKEN, None)
    assert login is not None and node.authenticator.access_of(login) is None


async def test_credentials_are_not_requested_without_authentication(autojump_clock: Any) -> None:
    node = Node(record("token:app", "read", secret=TOKEN), mode="off")
    node.is_cut_off = True
    assert await node.authenticator.identify(TOKEN, None) is not None
    node.view = None
    assert await node.authenticator.identify(TOKEN, None) is None
    assert node.asked == 0


async def test_isolated_node_admits_no_caller(autojump_clock: Any) -> None:
    node = Node(record("token:app", "read", secret=TOKEN))
    await node.authenticator.identify(TOKEN, None)
    node.is_cut_off = True
    await trio.sleep(FRESH_S / 2)
    await node.authenticator.identify(TOKEN, None)  # the cached metadata is still fresh
    assert node.asked == 1
    await trio.sleep(FRESH_S)
    began_s = trio.current_time()
    with pytest.raises(Unavailable):
        await node.authenticator.identify(TOKEN, None)
    assert trio.current_time() - began_s == pytest.approx(ASK_S)
    node.is_alone = True
    assert await node.authenticator.identify(TOKEN, None) is not None


async def test_node_outside_of_a_cluster_knows_no_identity() -> None:
    node = Node()
    node.view = None
    with pytest.raises(Unavailable, match="no cluster"):
        await node.authenticator.identify(TOKEN, None)


@pytest.mark.parametrize("wrong", ["ada", "token:", "token:no body", "cert:a\nb", "user:x", 5, "jwt:" + "x" * 300])
def test_invalid_principal_is_reported(wrong: object) -> None:
    from sandq.model.errors import SandqError

    with pytest.raises(SandqError):
        check_principal(wrong)
