"""The Python client at a node that requires authentication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

import sandq
import sandq.testing
from sandq.broker.peers import secret
from sandq.client import cluster_of, connect_with
from sandq.client.options import Options
from sandq.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unauthenticated
from sandq.node import run_node
from sandq.node.running import Serving
from tests.integration.test_identities import give
from tests.support.nodes.small_node import small_config
from tests.support.push_receiver import receiving
from tests.support.waiting import PATIENCE_S, until_holds

pytestmark = pytest.mark.usefixtures("node_time")


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Serving]:
    file = tmp_path / "gateways"
    file.write_text("a secret of gateways")
    file.chmod(0o600)
    more = {"SECURITY__AUTHENTICATION": "require", "HTTP__GATEWAY_SECRET_FILE": str(file)}
    async with run_node(small_config(tmp_path, **more)) as serving:
        yield serving


@pytest.fixture
async def boss(strict: Serving) -> AsyncIterator[sandq.Client]:
    """A client with all rights."""
    async with sandq.connect(at(strict), token=await give(strict, "boss", "admin")) as client:
        yield client


def at(node: Serving) -> str:
    return f"127.0.0.1:{node.client_port}"


async def test_without_a_token_there_is_no_client(strict: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unauthenticated, match="SANDQ_TOKEN"):
        async with sandq.connect(at(strict)):
            pass
    monkeypatch.setenv("SANDQ_TOKEN", await give(strict, "app", "reader"))
    async with sandq.connect(at(strict)) as client:
        assert (await client.admin.whoami()).principal == "token:app"


async def test_a_token_comes_from_a_file_or_a_function(
    strict: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{await give(strict, 'app', 'reader')}\n")
    monkeypatch.setenv("SANDQ_TOKEN_FILE", str(file))
    async with sandq.connect(at(strict)) as client:
        assert (await client.admin.whoami()).grants == ["read"]

    async def token() -> str:
        return file.read_text().strip()

    async with sandq.connect(at(strict), token=token) as client:
        assert (await client.admin.whoami()).principal == "token:app"
    for wrong in ("", "two words", 5):
        with pytest.raises(InvalidRequest, match="token"):
            async with sandq.connect(at(strict), token=wrong):  # type: ignore[arg-type]
                pass


async def test_tokens_are_made_changed_and_revoked(strict: Serving, boss: sandq.Client) -> None:
    admin = boss.admin
    made = await admin.create_token("app", ["writer:billing.*"], expires="90d", quota={"topics": 3}, note="bills")
    assert made.text not in repr(made) and made.text.startswith("sandq_")
    assert (made.identity.principal, made.identity.quota) == ("token:app", {"topics": 3})
    with pytest.raises(Conflict):
        await admin.create_token("app", ["reader"])
    rotated = await admin.rotate_token("app", expires=None)
    assert rotated.identity.expires_ms is None and rotated.identity.grants == ["writer:billing.*"]
    with pytest.raises(Unauthenticated):
        async with sandq.connect(at(strict), token=made.text):
            pass
    async with sandq.connect(at(strict), token=rotated.text) as client:
        assert (await client.admin.whoami()).quota == {"topics": 3}
    changed = await admin.update_identity(
        "token:app", add=["read"], remove=["writer:billing.*"], quota={"topics": None}
    )
    assert (changed.grants, changed.quota, changed.note) == (["read"], {}, "bills")
    assert [one.principal for one in await admin.identities()][-2:] == ["token:app", "token:boss"]
    await admin.revoke_token("app")
    with pytest.raises(NotFound):
        await admin.revoke_token("app")


async def test_roles_are_made_and_given(boss: sandq.Client) -> None:
    admin = boss.admin
    await admin.put_role("payments", ["produce:pay.*", "reader:pay.*"])
    await admin.create_identity("cert:till", ["payments"])
    assert await admin.roles() == {"payments": ["produce:pay.*", "reader:pay.*"]}
    with pytest.raises(Conflict):
        await admin.delete_role("payments")
    await admin.delete_identity("cert:till")
    await admin.delete_role("payments")
    with pytest.raises(InvalidRequest, match="neither a right nor a role"):
        await admin.create_token("app", ["payments"])


async def test_forbidden_requests_fail_immediately(strict: Serving, boss: sandq.Client) -> None:
    await boss.admin.create_topic("t")
    made = await boss.admin.create_token("app", ["read:t"])
    async with sandq.connect(at(strict), token=made.text) as client:
        with pytest.raises(Forbidden, match="produce on topic 't'"):
            await client.produce("t", b"x")
        with pytest.raises(Forbidden, match="consume"):
            async with client.subscribe("t", group="g") as subscription:
                await anext(subscription)
        with pytest.raises(Forbidden, match="read on topic 'other'"):
            await client.produce("other", b"x")
        with pytest.raises(Forbidden, match="security"):
            await client.admin.identities()
        assert [topic.name for topic in await client.admin.list_topics()] == ["t"]


async def test_a_consumer_ends_when_its_token_is_revoked(strict: Serving, boss: sandq.Client) -> None:
    await boss.admin.create_topic("t")
    made = await boss.admin.create_token("app", ["writer:t"])
    async with sandq.connect(at(strict), token=made.text) as client:
        async with client.subscribe("t", group="g") as subscription:
            await client.produce("t", b"x")
            await (await anext(subscription)).ack()
            await boss.admin.revoke_token("app")
            with trio.fail_after(PATIENCE_S), pytest.raises(Unauthenticated):
                await anext(subscription)
        with pytest.raises(Unauthenticated):
            await client.produce("t", b"y")


async def test_added_rights_take_effect_without_reconnecting(strict: Serving, boss: sandq.Client) -> None:
    await boss.admin.create_topic("t")
    made = await boss.admin.create_token("app", ["read:t"])
    async with sandq.connect(at(strict), token=made.text) as client:
        with pytest.raises(Forbidden):
            await client.produce("t", b"x")
        await boss.admin.update_identity("token:app", add=["produce:t"])
        await client.produce("t", b"x")


async def test_a_gateway_is_let_in_by_its_proof(strict: Serving) -> None:
    options = Options(gateway_secret=lambda: b"a secret of gateways")
    async with connect_with(options, (at(strict),), "gateway") as client:
        whoami = await client.admin.whoami()
        assert (whoami.principal, whoami.grants) == ("node", None)
    with pytest.raises(Unauthenticated, match="gateway_secret_file"):
        async with connect_with(Options(gateway_secret=lambda: b"another secret, alas"), (at(strict),), "gateway"):
            pass


async def test_a_gateway_is_cut_off_once_its_secret_counts_no_more(
    strict: Serving, boss: sandq.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret, "CHECK_S", 0.05)
    old, new = b"a secret of gateways", b"another one of gateways"

    def write(*secrets: bytes) -> None:
        path = tmp_path / "gateways"
        path.with_suffix(".new").write_bytes(b"\n---\n".join(secrets))
        path.with_suffix(".new").chmod(0o600)
        path.with_suffix(".new").rename(path)

    options = Options(gateway_secret=lambda: old)
    async with connect_with(options, (at(strict),), "gateway") as client:
        for step in ((old, new), (new, old), (new,)):
            with capture_logs() as log:
                write(*step)
                await until_holds(lambda log=log: "the secrets were read again" in [one["event"] for one in log])
                if step != (new,):
                    assert (await client.admin.whoami()).principal == "node"
        await until_holds(lambda: not cluster_of(client).connections())
        with pytest.raises(sandq.errors.SandqError):
            await client.admin.whoami(timeout=0.5)
    assert (await boss.admin.whoami()).principal == "token:boss"


async def test_refused_gateway_raises_unavailable(strict: Serving) -> None:
    options = Options(gateway_secret=lambda: b"another secret, alas", starts_alone=True)
    async with connect_with(options, (at(strict),), "gateway") as client:
        with pytest.raises(sandq.errors.Unavailable, match="does not let this gateway in"):
            await client.produce("t", b"x")


@pytest.mark.parametrize("remote", [("192.0.2.7", 4711), ("::ffff:192.0.2.7", 1, 0, 0), None])
def test_token_is_not_sent_to_other_machines_without_tls(remote: object) -> None:
    from sandq.client.transport.credentials import check_clear

    with pytest.raises(InvalidRequest, match="in the clear"):
        check_clear("sandq_x", remote, Options())
    check_clear("sandq_x", remote, Options(insecure=True))
    check_clear("sandq_x", remote, Options(), is_encrypted=True)
    check_clear("sandq_x", ("127.0.0.1", 4711), Options())


async def test_push_works_if_authentication_is_required(tmp_path: Path) -> None:
    allowed = {"PUSH__ALLOW": "127.0.0.1", "PUSH__ALLOW_HTTP": "true", "PUSH__PORTS": ""}
    config = small_config(tmp_path, SECURITY__AUTHENTICATION="require", **allowed)
    async with (
        run_node(config) as node,
        receiving() as receiver,
        sandq.connect(at(node), token=await give(node, "boss", "admin")) as boss,
    ):
        await boss.admin.create_topic("t")
        await boss.admin.set_push("t", "g", receiver.url, secrets=sandq.new_push_secret())
        await boss.produce("t", b"pushed")
        (came,) = await receiver.until(1)
        assert came.body == b"pushed"


def test_blocking_client_authenticates_with_token() -> None:
    with sandq.testing.broker(authentication=True) as b:
        token = b.token("app", "reader")
        with sandq.sync.connect(b.address, token=lambda: token) as client:
            assert client.admin.whoami().principal == "token:app"
            with pytest.raises(Forbidden):
                client.admin.create_topic("t")
