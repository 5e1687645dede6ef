"""Authentication over real sockets: tokens, and identities that are created, changed and deleted."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sandq.model.batch import Column, encode, headers_pack
from sandq.model.caller import NODE
from sandq.model.errors import Conflict
from sandq.model.message_targets import PUSH_HEADER, PushTarget
from sandq.model.principals import token_hash, token_text
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.protocol.requests_access import IdentityPut, RolePut
from sandq.server.handlers.rights import NAMES_AT_ONCE
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import Frame, RawClient
from tests.support.nodes.small_node import small_config
from tests.support.protocol_document import EXAMPLES, decode
from tests.support.waiting import PATIENCE_S, until_holds

pytestmark = pytest.mark.usefixtures("node_time")

ANYBODY = {
    *(Type.HELLO, Type.PROVE, Type.ON_BEHALF, Type.PING, Type.UNSUBSCRIBE, Type.CREDIT),
    *(Type.TOPIC_NAMES, Type.CLUSTER_INFO, Type.CLUSTER_CLOCK, Type.SCHEDULE_PREVIEW, Type.OVERVIEW, Type.SLO),
}
"""Requests that need no right."""


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Serving]:
    """A node that requires authentication."""
    async with run_node(small_config(tmp_path, SECURITY__AUTHENTICATION="require")) as serving:
        yield serving


async def give(node: Serving, name: str, *grants: str, **changes: object) -> str:
    """Return a new token of this name with these grants. The node itself creates it."""
    text = token_text(secrets.token_bytes(32))
    fields = {"grants": list(grants), "secret_hash": token_hash(text), **changes}
    await node.identities.put(IdentityPut(f"token:{name}", True, fields), NODE)
    return text


async def greet(node: Serving, **options: object) -> tuple[RawClient, Frame]:
    raw = await RawClient.connect(node.client_port, hello=False)
    return raw, await raw.call(Type.HELLO, 2, "raw", options)


async def test_client_without_token_is_refused(strict: Serving) -> None:
    raw, answer = await greet(strict)
    assert answer[0] == Type.ERROR and answer[2] == "UNAUTHENTICATED"
    await raw.rest()
    await trio.aclose_forcefully(raw.stream)


async def test_client_with_a_token_gets_its_identity(strict: Serving) -> None:
    token = await give(strict, "app", "writer:app.*", expires_ms=10**14)
    raw, answer = await greet(strict, token=token)
    assert answer[0] == Type.REPLY and answer[5]["authentication"] == 2
    _, _, principal, grants, expires_ms, quota = await raw.call(Type.IDENTIFY, None, None)
    assert (principal, expires_ms, quota) == ("token:app", 10**14, {})
    assert sorted(grants) == ["consume:app.*", "produce:app.*", "read:app.*"]
    await trio.aclose_forcefully(raw.stream)


async def test_every_request_without_rights_is_refused(strict: Serving) -> None:
    token = await give(strict, "app", "read:mine.*")
    raw, _ = await greet(strict, token=token)
    answers: dict[str, str] = {}
    for name in EXAMPLES:
        kind, _, *fields = decode(name)
        if kind not in ANYBODY:
            frame = await raw.call(kind, *fields)
            answers[name] = frame[2] if frame[0] == Type.ERROR else "done"
    refused = {name for name, code in answers.items() if code == "FORBIDDEN"}
    of_leases = {name for name in answers if name.split("-")[0] in ("ack", "nack", "extend")} | {"lease-pause"}
    assert answers.keys() - refused <= of_leases | {"metadata-all"}  # these leases and topics do not exist
    await trio.aclose_forcefully(raw.stream)


async def test_only_topics_with_a_right_are_listed(strict: Serving) -> None:
    admin, _ = await greet(strict, token=await give(strict, "boss", "admin"))
    for name in ("mine.a", "mine.b", "yours"):
        await admin.create(name)
    raw, _ = await greet(strict, token=await give(strict, "app", "produce:mine.*"))
    topics = (await raw.call(Type.METADATA, None))[3]
    assert [topic["name"] for topic in topics] == ["mine.a", "mine.b"]
    assert (await raw.call(Type.TOPIC_NAMES, ["*"], 10))[2] == ["mine.a", "mine.b"]
    assert (await raw.call(Type.METADATA, ["yours"]))[2] == (await raw.call(Type.METADATA, ["none"]))[2] == "FORBIDDEN"
    assert (await raw.call(Type.CLUSTER_INFO))[2]["topics"] == 2
    for one in (raw, admin):
        await trio.aclose_forcefully(one.stream)


async def test_each_of_many_topics_that_are_named_is_looked_at(strict: Serving) -> None:
    raw, _ = await greet(strict, token=await give(strict, "app", "produce:mine.*"))
    names = [f"mine.{number}" for number in range(2 * NAMES_AT_ONCE)]
    for at in (0, len(names)):
        answer = await raw.call(Type.METADATA, [*names[:at], "yours", *names[at:]])
        assert answer[2] == "FORBIDDEN" and answer[5]["topic"] == "yours"
    await trio.aclose_forcefully(raw.stream)


async def test_a_revoked_token_ends_a_live_subscription(strict: Serving) -> None:
    admin, _ = await greet(strict, token=await give(strict, "boss", "admin"))
    await admin.create("t")
    raw, _ = await greet(strict, token=await give(strict, "app", "writer:t"))
    assert (await raw.subscribe())[0] == Type.REPLY
    assert (await admin.call(Type.IDENTITY_DELETE, "token:app"))[0] == Type.REPLY
    with trio.fail_after(PATIENCE_S):
        frame = await raw.receive()
        assert frame[:3] == [Type.ERROR, 0, "UNAUTHENTICATED"]
        await raw.rest()
    for one in (raw, admin):
        await trio.aclose_forcefully(one.stream)


async def test_client_with_changed_grants_must_reconnect(strict: Serving) -> None:
    token = await give(strict, "app", "reader:t")
    raw, _ = await greet(strict, token=token)
    await strict.identities.put(IdentityPut("token:app", False, {"add": ["produce:t"], "note": "more"}), NODE)
    frame = await raw.receive()
    assert frame[:3] == [Type.ERROR, 0, "UNAVAILABLE"] and frame[4]
    again, _ = await greet(strict, token=token)
    grants = (await again.call(Type.IDENTIFY, None, None))[3]
    assert grants == ["read:t", "produce:t"]
    await strict.identities.put(IdentityPut("token:app", False, {"note": "the same"}), NODE)
    assert (await again.call(Type.PING))[0] == Type.REPLY  # a changed note ends no connection
    for one in (raw, again):
        await trio.aclose_forcefully(one.stream)


async def test_a_token_is_of_one_identity(strict: Serving) -> None:
    # The node makes its first token only while there is no identity.
    await until_holds(lambda: "token:admin" in strict.broker.metadata.identities)
    token = await give(strict, "app", "reader")
    for name, is_new in (("other", True), ("admin", False)):
        fields = {"grants": ["admin"], "secret_hash": token_hash(token)}
        with pytest.raises(Conflict, match="token:app has this token"):
            await strict.identities.put(IdentityPut(f"token:{name}", is_new, fields), NODE)
    again = IdentityPut("token:app", True, {"grants": ["reader"], "secret_hash": token_hash(token)})
    await strict.identities.put(again, NODE)  # like a client that did not see the response


async def test_changed_role_changes_the_rights_of_its_identities(strict: Serving) -> None:
    await strict.identities.put_role(RolePut("team", ["read:t"]), NODE)
    raw, _ = await greet(strict, token=await give(strict, "app", "team"))
    await strict.identities.put_role(RolePut("team", ["read:t", "manage:t"]), NODE)
    assert (await raw.receive())[2] == "UNAVAILABLE"
    await trio.aclose_forcefully(raw.stream)


async def test_a_token_ends_when_it_expires(tmp_path: Path) -> None:
    hand = HandClock()
    config = small_config(tmp_path, SECURITY__AUTHENTICATION="require")
    async with run_node(config, clock=hand.guarded()) as node:
        now_ms = node.broker.clock.now_ms()
        token = await give(node, "app", "reader", expires_ms=now_ms + 60_000)
        raw, _ = await greet(node, token=token)
        hand.forward(61)
        assert (await raw.receive())[:3] == [Type.ERROR, 0, "UNAUTHENTICATED"]
        late, answer = await greet(node, token=token)
        assert answer[2] == "UNAUTHENTICATED" and "expired" in answer[3]
        for one in (raw, late):
            await trio.aclose_forcefully(one.stream)


async def test_connected_client_cannot_change_its_identity(strict: Serving) -> None:
    """A running request keeps the token with which it began: it ends when that token ends."""
    admin, _ = await greet(strict, token=await give(strict, "boss", "admin"))
    await admin.create("t")
    other = await give(strict, "other", "read:none")
    raw, _ = await greet(strict, token=await give(strict, "app", "writer:t"))
    assert (await raw.subscribe())[0] == Type.REPLY
    assert (await raw.call(Type.HELLO, 2, "raw", {"token": other}))[2] == "INVALID"
    assert (await raw.call(Type.IDENTIFY, None, None))[2] == "token:app"
    await admin.call(Type.IDENTITY_DELETE, "token:app")
    with trio.fail_after(PATIENCE_S):
        assert (await raw.receive())[:3] == [Type.ERROR, 0, "UNAUTHENTICATED"]
    for one in (raw, admin):
        await trio.aclose_forcefully(one.stream)


async def test_refused_hello_can_be_repeated(strict: Serving) -> None:
    quota = {"connections": 1}
    token = await give(strict, "app", "reader", quota=quota)
    raw, answer = await greet(strict, token=token, gateway=5)
    assert answer[2] == "INVALID"
    again = await raw.call(Type.HELLO, 2, "raw", {"token": token})
    assert again[0] == Type.REPLY, "the connection must not count twice"
    await trio.aclose_forcefully(raw.stream)


async def test_wrong_tokens_and_frames_before_hello_are_refused(strict: Serving) -> None:
    for options in ({"token": "sandq_" + "x" * 43}, {"token": "no.such.jwt"}):
        raw, answer = await greet(strict, **options)
        assert answer[:3] == [Type.ERROR, 0, "UNAUTHENTICATED"]
        await trio.aclose_forcefully(raw.stream)
    raw, answer = await greet(strict, token=5)
    assert answer[2] == "INVALID"
    assert (await raw.call(Type.PING))[2] == "PROTOCOL"
    await trio.aclose_forcefully(raw.stream)


async def test_a_gateway_does_nothing_before_its_proof(strict: Serving) -> None:
    raw, answer = await greet(strict, gateway=bytes(32))
    assert answer[0] == Type.REPLY
    assert (await raw.call(Type.METADATA, None))[2] == "PROTOCOL"
    await trio.aclose_forcefully(raw.stream)
    raw, _ = await greet(strict, gateway=bytes(32))
    assert (await raw.call(Type.PROVE, bytes(32)))[:3] == [Type.ERROR, 0, "UNAUTHENTICATED"]
    await trio.aclose_forcefully(raw.stream)


async def test_accept_mode_checks_presented_tokens(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path, SECURITY__AUTHENTICATION="accept")) as node:
        anybody, _ = await greet(node)
        assert (await anybody.create("t"))[0] == Type.REPLY
        held, _ = await greet(node, token=await give(node, "app", "reader:t"))
        assert (await held.produce(b"x"))[2] == "FORBIDDEN"
        wrong, answer = await greet(node, token="sandq_wrong")
        assert answer[2] == "UNAUTHENTICATED"
        for one in (anybody, held, wrong):
            await trio.aclose_forcefully(one.stream)


async def test_first_admin_token_has_all_rights(strict: Serving) -> None:
    file = strict.data_dir / "admin.token"
    await until_holds(file.exists)
    assert file.stat().st_mode & 0o777 == 0o600
    raw, answer = await greet(strict, token=file.read_text().strip())
    assert answer[0] == Type.REPLY and (await raw.create("t"))[0] == Type.REPLY
    await trio.aclose_forcefully(raw.stream)


async def test_a_token_of_an_outside_issuer_lets_in(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    form = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "keys.pem").write_bytes(key.public_key().public_bytes(*form))
    jwt_of = {"JWT__ISSUER": "https://id.example", "JWT__KEYS_FILE": str(tmp_path / "keys.pem")}
    async with run_node(small_config(tmp_path, SECURITY__AUTHENTICATION="require", **jwt_of)) as node:
        said = {"iss": "https://id.example", "aud": "sandq", "exp": 2**32, "sub": "ada@example.com"}
        token = jwt.encode({**said, "sandq_grants": ["read:t"]}, key, "EdDSA")
        raw, _ = await greet(node, token=token)
        _, _, principal, grants, *_ = await raw.call(Type.IDENTIFY, None, None)
        assert (principal, grants) == ("jwt:ada@example.com", ["read:t"])
        change = IdentityPut("jwt:ada@example.com", True, {"grants": ["produce:t"], "quota": {"topics": 1}})
        await node.identities.put(change, NODE)
        assert (await raw.receive())[2] == "UNAVAILABLE"  # the identity has more rights now
        again, _ = await greet(node, token=token)
        _, _, _, grants, _, quota = await again.call(Type.IDENTIFY, None, None)
        assert (sorted(grants), quota) == (["produce:t", "read:t"], {"topics": 1})
        for one in (raw, again):
            await trio.aclose_forcefully(one.stream)


async def test_token_for_some_groups_cannot_settle_leases_of_others(strict: Serving) -> None:
    admin, _ = await greet(strict, token=await give(strict, "boss", "admin"))
    await admin.create("t")
    await admin.produce(b"x", b"y")
    mail, _ = await greet(strict, token=await give(strict, "mail", "consume:t/mail-*"))
    await admin.subscribe(group="billing")
    billing = await admin.push()
    await mail.subscribe(group="mail-eu")
    mine = await mail.push()
    number, partition, theirs = billing[2:5]
    for frame in (
        (Type.ACK, number, partition, [[theirs, None]]),
        (Type.NACK, number, partition, [[theirs, None, None, None]]),
        (Type.EXTEND, number, partition, [[mine[4], 30_000], [theirs, 30_000]]),
        (Type.ACK_THEN, number, partition, theirs, None, [["t", None, False, {"value": b"x"}]]),
    ):
        assert (await mail.call(*frame))[2] == "FORBIDDEN"
    no_lease = 2**40
    results = (await mail.call(Type.EXTEND, number, partition, [[no_lease, 30_000], [mine[4], 30_000]]))[2]
    assert results[0] is None and results[1] > 0
    assert (await mail.call(Type.ACK, number, partition, [[mine[4], None], [no_lease, None]]))[2] == [None, []]
    assert (await mail.call(Type.ACK, number, partition, [[no_lease, None]]))[2] == [[]]
    assert (await admin.call(Type.ACK, number, partition, [[theirs, None]]))[2] == [None]
    for one in (mail, admin):
        await trio.aclose_forcefully(one.stream)


async def test_callbacks_need_the_right_to_produce_to_their_topics(tmp_path: Path) -> None:
    hosts = {"PUSH__ALLOW": "127.0.0.0/8", "PUSH__ALLOW_HTTP": "true", "PUSH__PORTS": ""}
    async with run_node(small_config(tmp_path, SECURITY__AUTHENTICATION="require", **hosts)) as strict:
        admin, _ = await greet(strict, token=await give(strict, "boss", "admin"))
        await admin.create("t", push_targets=True)
        for name in ("mine.done", "theirs"):
            await admin.create(name)
        raw, _ = await greet(strict, token=await give(strict, "app", "writer:t", "produce:mine.*"))

        def header(topic: str) -> bytes:
            target = PushTarget("http://127.0.0.1:9/", failure_callback=topic)
            return headers_pack({PUSH_HEADER: target.text()}, max_bytes=10_000)

        async def results(topic: str) -> list[str]:
            """Return the answer to each request with such a header: the code of an error, or "done"."""
            cell = header(topic)
            batches = [
                encode({Column.VALUE: [b"x"] * count, Column.HEADERS: [cell] * count}) for count in (1, 20, 200)
            ]  # the largest is checked in a thread
            found = [await raw.produce_batch(batch, topic="t") for batch in batches]
            await raw.subscribe(number=7, group=topic, credit=1)
            pushed = await raw.push()
            number, partition, token = pushed[2:5]
            item = [token, None, None, None, True, {"headers": cell}]
            then = [["t", None, False, {"value": b"x", "headers": cell}]]
            found.append(await raw.call(Type.ACK_THEN, number, partition, token, None, then))
            found.append(await raw.call(Type.NACK, number, partition, [item]))
            await raw.call(Type.UNSUBSCRIBE, 7)
            return [one[2] if one[0] == Type.ERROR else "done" for one in found]

        await admin.produce(b"x", topic="t")
        assert await results("theirs") == ["FORBIDDEN"] * 5
        assert await results("mine.done") == ["done"] * 5
        assert (await results("mine.nothing"))[:3] == ["INVALID"] * 3
        for one in (raw, admin):
            await trio.aclose_forcefully(one.stream)
