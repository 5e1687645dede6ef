"""HTTP requests have only the rights of their identity, on every route, and only until these are revoked."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import trio

from sandq.broker.owner_usage import NOTHING
from sandq.client.admin.admin import Admin
from sandq.model.access import ROLES, Access, Right
from sandq.model.caller import NODE
from sandq.model.errors import Forbidden
from sandq.model.principals import token_hash, token_text
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.protocol.requests_access import IdentityDelete, IdentityPut
from sandq.protocol.requests_audit import AuditNote
from sandq.server.http import audit_notes
from sandq.server.http.app import _application
from sandq.server.http.caller import needs_of
from sandq.server.http.rights import NEEDS, UNKNOWN, is_open
from tests.support.http_client import NO_TLS
from tests.support.nodes.gateway import gateway
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node, serving
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

ROUTES = [(next(iter(route.methods - {"HEAD"})), route.path, route) for route in _application("0").state.routes]
NAMES = {
    **{
        "topic": "billing.bills",
        "group": "mail",
        "partition:int": "0",
        "message": "x",
        "backup": "20300131T080000Z-0a1b2c",
        "key:key": "k",
        "name": "daily",
    },
    **{"limit": "llm", "node": "node1", "asset": "swagger-ui.css", "principal": "cert:x"},
}


async def give(node: Serving, name: str, *grants: str, **changes: object) -> str:
    """Return a token of this name with these grants."""
    text = token_text(secrets.token_bytes(32))
    fields = {"grants": list(grants), "secret_hash": token_hash(text), **changes}
    await node.identities.put(IdentityPut(f"token:{name}", True, fields), NODE)
    return text


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Serving]:
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", SECURITY__AUTHENTICATION="require")
    async with run_node(config) as serving:
        yield serving


@pytest.fixture
async def web(strict: Serving) -> AsyncIterator[httpx.AsyncClient]:
    assert strict.http is not None
    async with httpx.AsyncClient(
        verify=NO_TLS, base_url="http://{}:{}".format(*strict.http), timeout=PATIENCE_S
    ) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def filled(path: str) -> str:
    return re.sub(r"{([^}]+)}", lambda found: NAMES[found[1]], path)


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "route"), ROUTES, ids=[f"{method} {path}" for method, path, _ in ROUTES])
def test_every_route_has_needs_that_match_its_path(method: str, path: str, route: Any) -> None:
    needs = NEEDS[method, path]
    assert needs.is_of_topic == ("{topic}" in path)
    assert needs.is_of_group == ("{group}" in path)


def test_table_of_rights_matches_the_routes() -> None:
    assert {(method, path) for method, path, _ in ROUTES} == NEEDS.keys()


def test_route_that_is_not_in_the_table_needs_most() -> None:
    class Route:
        methods = frozenset({"POST"})
        path = "/new"

    assert needs_of(Route()) is UNKNOWN
    assert UNKNOWN.refusal(Access.of("token:a", ["operator"], {}), {}) is not None


# -- every route, with each role ---------------------------------------------------------------------------------------


def bodies() -> Iterator[tuple[str, str, Any]]:
    for method, path, _ in ROUTES:
        has_body = method in ("POST", "PUT", "PATCH")
        yield method, path, {"name": "billing.bills"} if path == "/topics" and has_body else {} if has_body else None


def asked(tokens: Iterable[str], method: str, path: str, *, is_all: bool) -> list[str]:
    """Tokens to try on a route: a refused one and an accepted one, or all of them."""
    waits = path.endswith(("/stream", "/changes"))
    # The effect of roles with many rights is checked in the table below.
    fit = [name for name in tokens if name not in ("admin", "operator") or (method, path) == ("GET", "/audit")]
    refused = [name for name in fit if not allowed(name, method, path)]
    let = [name for name in fit if name not in refused and not (waits and name != "elsewhere")]
    if path == "/overview/stream":
        let = []  # this stream has no end and is open to everybody: see tests/integration/http/test_overview.py
    return [*refused, *let] if is_all else [*refused[:1], *let[:1]]


@pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_every_route_accepts_only_callers_with_the_right(
    strict: Serving, web: httpx.AsyncClient, is_all: bool
) -> None:
    tokens = {role: await give(strict, f"has-{role}", role) for role in ROLES}
    tokens["elsewhere"] = await give(strict, "elsewhere", "writer:shop.*", "manage:shop.*")
    tokens["team"] = await give(strict, "team", "writer:billing.*", "manage:billing.*")
    for method, path, body in bodies():
        if is_open(path):
            continue
        address = filled(path)
        unknown = await web.request(method, address, json=body)
        assert unknown.status_code == 401 and unknown.headers["www-authenticate"] == "Bearer", (method, path)
        assert unknown.json()["code"] == "UNAUTHENTICATED"
        for name in asked(tokens, method, path, is_all=is_all):
            answer = await web.request(method, address, json=body, headers=bearer(tokens[name]))
            wanted = allowed(name, method, path)
            result = (name, method, path, answer.status_code, answer.text[:200])
            assert (answer.status_code != 403) == wanted, result
            if not wanted:
                assert answer.json()["code"] == "FORBIDDEN", result


def allowed(name: str, method: str, path: str) -> bool:
    """Return whether this token may use a route, according to the table of rights."""
    grants = {"elsewhere": ["writer:shop.*", "manage:shop.*"], "team": ["writer:billing.*", "manage:billing.*"]}
    access = Access.of(name, grants.get(name, [name]), {})
    names = {"topic": NAMES["topic"], "group": NAMES["group"]}
    if (method, path) == ("POST", "/topics"):
        return access.allows(Right.MANAGE, NAMES["topic"])
    return NEEDS[method, path].refusal(access, names) is None


@pytest.mark.parametrize(
    ("role", "method", "path", "is_allowed"),
    [
        ("reader", "GET", "/topics/{topic}/messages", True),
        ("reader", "POST", "/topics/{topic}", False),
        ("reader", "POST", "/topics/{topic}/groups/{group}/lease", False),
        ("writer", "POST", "/topics/{topic}", True),
        ("writer", "DELETE", "/topics/{topic}/messages", False),
        ("writer", "PUT", "/topics/{topic}/groups/{group}/push", False),
        ("operator", "DELETE", "/topics/{topic}", True),
        ("operator", "PUT", "/topics/{topic}/groups/{group}/push", True),
        ("operator", "POST", "/cluster/rebuild", True),
        ("operator", "POST", "/topics/{topic}", False),
        ("operator", "GET", "/audit", False),
        ("admin", "GET", "/audit", True),
        ("admin", "PUT", "/topics/{topic}/groups/{group}/push", True),
        ("operator", "PUT", "/limits/{limit}", True),
        ("writer", "PUT", "/limits/{limit}", False),
        ("reader", "GET", "/limits", True),
        ("team", "GET", "/limits", False),
        ("team", "DELETE", "/limits/{limit}", False),
    ],
)
def test_roles_allow_their_routes(role: str, method: str, path: str, is_allowed: bool) -> None:
    assert allowed(role, method, path) == is_allowed


# -- what bodies name --------------------------------------------------------------------------------------------------


async def test_topics_named_in_bodies_are_checked(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    team = bearer(await give(strict, "team", "writer:billing.*", "manage:billing.*"))
    for name in ("billing.bills", "shop.orders"):
        assert (await web.post("/topics", json={"name": name}, headers=admin)).status_code == 201
    elsewhere = await web.post("/topics", json={"name": "shop.mine"}, headers=team)
    assert (elsewhere.status_code, elsewhere.json()["topic"]) == (403, "shop.mine")
    settings = {"settings": {"dead_letter_topic": "shop.orders"}}
    dead = await web.patch("/topics/billing.bills", json=settings, headers=team)
    assert (dead.status_code, dead.json()["topic"], dead.json()["right"]) == (403, "shop.orders", "produce")
    assert (await web.patch("/topics/billing.bills", json=settings, headers=admin)).status_code == 200

    await web.post("/topics/billing.bills", json={"text": "x"}, headers=team)
    leased = (await web.post("/topics/billing.bills/groups/g/lease", json={"wait": "5s"}, headers=team)).json()
    held = {name: leased["messages"][0][name] for name in ("lease_token", "offset")}
    address = "/topics/billing.bills/groups/g/ack"
    ack = {**held, "then": [{"topic": "shop.orders", "text": "y"}]}
    assert (await web.post(address, json=ack, headers=team)).status_code == 403
    assert (await web.post(address, json={**held, "then": [{"text": "y"}]}, headers=team)).status_code == 200
    assert await until_answer(lambda: _messages(web, "shop.orders", admin)) == []


async def test_topics_of_callbacks_are_checked(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    team = bearer(await give(strict, "team", "writer:mine.*", "manage:mine.*"))
    for name, settings in (("mine.calls", {"push_targets": True}), ("mine.done", {}), ("theirs", {})):
        assert (await web.post("/topics", json={"name": name, "settings": settings}, headers=admin)).status_code == 201
    for number, (topic, is_allowed) in enumerate((("theirs", False), ("mine.done", True))):
        push = {"url": "https://shop.example/", "callback": topic}
        header = {"sandq-push": json.dumps({"url": "https://shop.example/", "failure_callback": topic})}
        stored = (await web.post("/topics/mine.calls", json={"text": "x", "delay": "1h"}, headers=team)).json()
        await web.post("/topics/mine.calls", json={"messages": [{"text": "x"}] * 3}, headers=team)
        lease = f"/topics/mine.calls/groups/g{number}/"
        leased = (await web.post(f"{lease}lease", json={"wait": "5s", "max": 3}, headers=team)).json()["messages"]
        held = [{name: one[name] for name in ("lease_token", "offset")} for one in leased]
        then = [{"text": "x", "push": push}]
        daily = {"cron": "0 9 * * *", "text": "x", "headers": header}
        for method, path, body in (
            ("POST", "/topics/mine.calls", {"text": "x", "push": push}),
            ("POST", "/topics/mine.calls", {"text": "x", "headers": header}),
            ("POST", "/topics/mine.calls", {"messages": [{"text": "x"}, {"text": "x", "push": push}]}),
            ("PATCH", f"/topics/mine.calls/messages/{stored['id']}", {"headers": header}),
            ("POST", "/topics/mine.calls/schedules", {"name": "daily", **daily}),
            ("POST", "/topics/mine.calls/schedules", {"schedules": [{"name": "other", **daily}]}),
            ("POST", f"{lease}nack", {**held[0], "headers": header}),
            ("POST", f"{lease}ack", {**held[1], "then": then}),
            ("POST", f"{lease}dead", {**held[2], "then": then}),
        ):
            answer = await web.request(method, path, json=body, headers=team)
            assert (answer.status_code == 403) is not is_allowed, (method, path, body, answer.text)
            assert answer.status_code < 400 or answer.json()["topic"] == "theirs", answer.text
    answer = await web.post(f"{lease}dead", json={**held[0], "then": [{"text": "x", "topic": "theirs"}]}, headers=team)
    assert answer.status_code == 403
    answer = await web.post(
        f"{lease}nack", json={**held[0], "if_dead": [{"text": "x", "topic": "theirs"}]}, headers=team
    )
    assert answer.status_code == 403


async def _messages(web: httpx.AsyncClient, topic: str, headers: dict[str, str]) -> Any:
    return (await web.get(f"/topics/{topic}/messages", headers=headers)).json()["messages"]


async def test_lists_show_only_permitted_rows(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    team = bearer(await give(strict, "team", "produce:billing.*"))
    for name in ("billing.bills", "shop.orders"):
        await web.post("/topics", json={"name": name}, headers=admin)
    assert [topic["name"] for topic in (await web.get("/topics", headers=team)).json()["topics"]] == ["billing.bills"]
    rows = (await web.get("/cluster/partitions", headers=team)).json()["partitions"]
    assert {row["topic"] for row in rows} == {"billing.bills"}
    hidden = await web.get("/cluster/partitions", params={"topic": "shop.orders"}, headers=team)
    nowhere = await web.get("/cluster/partitions", params={"topic": "shop.nothing"}, headers=team)
    assert hidden.status_code == nowhere.status_code == 403


# -- who asks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Bearer mistaken", "Basic YTpi", "Bearer", "Bearer " + "x" * 9000])
async def test_unusable_authorization_header_is_refused(web: httpx.AsyncClient, header: str) -> None:
    answer = await web.get("/topics", headers={"authorization": header})
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert "mistaken" not in answer.text


async def test_health_and_docs_are_open_and_metrics_need_a_token(strict: Serving, web: httpx.AsyncClient) -> None:
    for path in ("/livez", "/healthz", "/readyz", "/openapi.json", "/docs", "/docs/swagger-ui.css"):
        assert (await web.get(path)).status_code == 200, path
    assert (await web.get("/metrics")).status_code == 401
    token = await give(strict, "prometheus", "read:nothing")
    assert (await web.get("/metrics", headers=bearer(token))).status_code == 200


async def test_unauthenticated_request_with_body_is_refused(strict: Serving, web: httpx.AsyncClient) -> None:
    assert strict.http is not None
    for length in ("Content-Length: 9", "Transfer-Encoding: chunked"):
        for method, path, more in (
            ("POST", "/docs", ""),
            ("GET", "/openapi.json", ""),
            ("GET", "/healthz", ""),
            ("OPTIONS", "/topics", "Access-Control-Request-Method: GET\r\n"),
        ):
            async with await anyio.connect_tcp(*strict.http) as raw:
                head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}{length}\r\n\r\n"
                await raw.send(head.encode())
                with anyio.fail_after(PATIENCE_S):
                    assert b" 401 " in (await raw.receive()).splitlines()[0]
    none = await web.get("/docs", headers={"content-length": "0"})
    assert none.status_code == 200


async def test_revoked_token_ends_streams_and_waiting_requests(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    await web.post("/topics", json={"name": "t"}, headers=admin)
    team = bearer(await give(strict, "team", "consume:t"))
    async with web.stream("GET", "/topics/t/groups/g/stream", headers=team) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "retry: 1000"
        await strict.identities.delete(IdentityDelete("token:team"), NODE)
        result = [line async for line in lines]
    assert "event: error" in result
    assert any("UNAUTHENTICATED" in line for line in result)
    waited = await web.post("/topics/t/groups/g/lease", json={"wait": "30s"}, headers=team)
    assert waited.status_code == 401


async def test_a_long_poll_ends_when_rights_change(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    await web.post("/topics", json={"name": "t"}, headers=admin)
    team = bearer(await give(strict, "team", "consume:t"))
    answers: list[httpx.Response] = []

    async def wait() -> None:
        answers.append(await web.post("/topics/t/groups/g/lease", json={"wait": "50s"}, headers=team))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await until_answer(lambda: _groups(web, admin), lambda groups: groups)
        await strict.identities.put(IdentityPut("token:team", False, {"grants": ["read:t"]}), NODE)
    assert answers[0].status_code == 503 and answers[0].json()["retriable"]
    assert (await web.post("/topics/t/groups/g/lease", json={"wait": "50s"}, headers=team)).status_code == 403


async def _groups(web: httpx.AsyncClient, headers: dict[str, str]) -> Any:
    return (await web.get("/topics/t/groups", headers=headers)).json()["groups"]


async def test_refusals_are_in_the_audit_log(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    team = bearer(await give(strict, "team", "read:t"))
    refused = await web.delete("/topics/t", headers={**team, "x-request-id": "mine"})
    assert refused.status_code == 403
    await web.get("/topics", headers=bearer("sandq_wrong"))

    async def audit_lines() -> Any:
        return (await web.get("/audit", headers=admin)).json()["lines"]

    lines = await until_answer(
        audit_lines, lambda lines: {"FORBIDDEN", "UNAUTHENTICATED"} <= {one["result"] for one in lines}
    )
    (line,) = [one for one in lines if one["result"] == "FORBIDDEN"]
    assert (line["principal"], line["request"], line["request_id"]) == ("token:team", "DELETE /topics/{topic}", "mine")
    assert line["about"] == {"right": "manage", "topic": "t"} and line["peer"] == "127.0.0.1"
    assert "sandq_wrong" not in str(lines)


async def test_refused_names_do_not_stop_the_server(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    team = bearer(await give(strict, "team", "consume:t"))
    then = b'{"lease_token": "1.0.65536", "offset": "01M8ES50JH000000000M000000", "then": [{"topic": %b, "text": "x"}]}'
    names = (rb'"\ud800"', b'"' + rb"\udfff" * 300 + b'"', rb'"\u0000\u2028"', b'"%b"' % (b"x" * 9000))
    for name in names:
        made = await web.post("/topics", content=b'{"name": %b}' % name, headers=team)
        sent = await web.post("/topics/t/groups/g/ack", content=then % name, headers=team)
        assert (made.status_code, sent.status_code) == (403, 403), name[:40]
        assert max(len(made.content), len(sent.content)) < 8000
    assert len((await web.post(f"/topics/{'y' * 8000}", json={"text": "x"}, headers=team)).content) < 3000
    assert (await web.post("/topics", json={"name": "y" * 8000}, headers=admin)).status_code == 400

    async def audit_lines() -> Any:
        return (await web.get("/audit", headers=admin)).json()["lines"]

    lines = await until_answer(
        audit_lines, lambda lines: sum(one["result"] == "FORBIDDEN" for one in lines) == 2 * len(names) + 1
    )
    assert "\\ud800" in {one.get("about", {}).get("topic") for one in lines}


async def test_a_note_that_cannot_be_sent_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    result: list[str] = []

    async def call(cluster: Any, note: AuditNote) -> None:
        result.append(note.call)
        if note.call == "first":
            raise UnicodeEncodeError("utf-8", "", 0, 1, "no")

    monkeypatch.setattr(audit_notes, "call", call)
    monkeypatch.setattr(audit_notes, "cluster_of", lambda client: None)
    notes = audit_notes.AuditNotes(None)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notes.run)
        for name in ("first", "second"):
            notes.refused("a", None, name, Forbidden("no"), "1")
        await until_holds(lambda: result == ["first", "second"])
        tasks.cancel_scope.cancel()


async def test_anonymous_client_may_do_everything_if_authentication_is_accept(tmp_path: Path) -> None:
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", SECURITY__AUTHENTICATION="accept")
    async with run_node(config) as serving:
        assert serving.http is not None
        reader = bearer(await give(serving, "reader", "reader"))
        async with httpx.AsyncClient(
            verify=NO_TLS, base_url="http://{}:{}".format(*serving.http), timeout=PATIENCE_S
        ) as web:
            assert (await web.post("/topics", json={"name": "t"})).status_code == 201
            assert (await web.delete("/topics/t", headers=reader)).status_code == 403
            assert (await web.get("/topics", headers=bearer("wrong"))).status_code == 401
            assert (await web.delete("/topics/t")).status_code == 204


async def test_gateway_without_secret_names_the_setting(strict: Serving) -> None:
    token = await give(strict, "boss", "admin")
    limits = strict.broker.limits
    where = f"127.0.0.1:{strict.client_port}"
    async with (
        gateway(where, limits, timeout_s=1.0, starts_alone=True) as address,
        httpx.AsyncClient(verify=NO_TLS, base_url="http://{}:{}".format(*address), timeout=PATIENCE_S) as web,
    ):
        answer = await web.get("/topics", headers=bearer(token))
        assert answer.status_code == 503
        assert "gateway_secret_file" in answer.json()["detail"]


# -- quotas ------------------------------------------------------------------------------------------------------------


async def test_callers_are_held_to_their_quotas(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    made = await web.post("/topics", json={"name": "t"}, headers=admin)
    assert made.json()["owner"] == "token:boss"
    few = bearer(await give(strict, "few", "admin", quota={"requests_per_s": 2}))
    answers = [await web.get("/topics", headers=few) for _ in range(8)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused and answers[0].status_code == 200
    result = refused[0].json()
    assert (result["code"], result["quota"], result["maximum"], result["retriable"]) == (
        "QUOTA",
        "requests_per_s",
        2,
        True,
    )
    assert refused[0].headers["retry-after"] == "1" and result["retry_after_ms"] > 0
    meters, answered = strict.quotas.meters, len(answers) - len(refused)
    await until_holds(lambda: "token:few" in meters and meters["token:few"].requests == answered)
    assert meters["token:few"].refused == len(refused)
    assert (await web.get("/topics", headers=admin)).status_code == 200


async def test_bodies_are_counted(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    await web.post("/topics", json={"name": "t"}, headers=admin)
    small = bearer(await give(strict, "small", "admin", quota={"bytes_per_s": 100}))
    for body in ({"text": "x" * 5000}, None):
        sent = await web.post("/topics/t", json=body or {"text": ""}, headers=small)
        assert sent.status_code == (201 if body else 429)

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"text": "' + b"x" * 5000 + b'"}'

    other = bearer(await give(strict, "other", "admin", quota={"bytes_per_s": 100}))
    assert (await web.post("/topics/t", content=pieces(), headers=other)).status_code == 201
    assert (await web.get("/topics", headers=other)).status_code == 429


async def test_client_over_request_quota_may_settle(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    await web.post("/topics", json={"name": "t"}, headers=admin)
    none = bearer(await give(strict, "none", "admin", quota={"requests_per_s": 0}))
    assert (await web.post("/topics/t/groups/g/lease", json={}, headers=none)).status_code == 429
    items = {"items": [{"lease_token": "1.0.65536"}]}
    assert (await web.post("/topics/t/groups/g/ack", json=items, headers=none)).status_code != 429


async def test_max_delay_quota_of_the_caller_is_enforced(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    await web.post("/topics", json={"name": "t"}, headers=admin)
    near = bearer(await give(strict, "near", "admin", quota={"max_delay_ms": 60_000}))
    for body in (
        {"text": "x", "delay": "2m"},
        {"text": "x", "delay_ms": 120_000},
        {"text": "x", "deliver_at": "2100-01-01T00:00:00Z"},
        {"messages": [{"text": "x"}, {"text": "y", "delay": "1h"}]},
    ):
        refused = await web.post("/topics/t", json=body, headers=near)
        assert (refused.status_code, refused.json()["quota"]) == (429, "max_delay_ms"), body
        assert not refused.json()["retriable"]
    sent = await web.post("/topics/t", json={"text": "x", "delay": "30s"}, headers=near)
    assert sent.status_code == 201
    moved = await web.patch(f"/topics/t/messages/{sent.json()['id']}", json={"delay": "2h"}, headers=near)
    assert (moved.status_code, moved.json()["quota"]) == (429, "max_delay_ms")
    every = {"name": "n", "text": "", "every": "1h"}
    assert (await web.post("/topics/t/schedules", json=every, headers=near)).status_code == 429
    assert (await web.post("/topics/t/schedules", json=every, headers=admin)).status_code in (200, 201)


async def test_client_over_connection_quota_may_settle(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    await web.post("/topics", json={"name": "t"}, headers=admin)
    one = bearer(await give(strict, "one", "admin", quota={"connections": 1}))
    items = {"items": [{"lease_token": "1.0.65536"}]}
    async with web.stream("GET", "/topics/t/groups/g/stream", headers=one) as stream:
        assert stream.status_code == 200
        other = await web.get("/topics", headers=one)
        assert (other.status_code, other.json()["quota"]) == (429, "connections")
        for what in ("ack", "nack", "extend"):
            settled = await web.post(f"/topics/t/groups/g/{what}", json=items, headers=one)
            assert settled.status_code != 429, (what, settled.text)
    await until_holds(lambda: not serving().guard.quotas.meters["token:one"].connections)


async def test_a_body_that_is_too_large_takes_no_more_than_the_largest(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    await web.post("/topics", json={"name": "t"}, headers=admin)
    large = bearer(await give(strict, "large", "admin", quota={"bytes_per_s": 1 << 40}))
    assert strict.http is not None
    head = f"POST /topics/t HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {large['authorization']}\r\n"
    async with await anyio.connect_tcp(*strict.http) as raw:
        await raw.send(f"{head}Content-Length: {'9' * 18}\r\n\r\n".encode())
        answer = await raw.receive()
    assert b" 413 " in answer.splitlines()[0]
    assert (await web.get("/topics", headers=large)).status_code == 200


def _of_hidden(cluster: Any) -> Any:
    async def result(admin: Admin) -> Any:
        different = [{"topic": "hidden", "partition": 0, "nodes": ["node1"]}]
        shut = [_shut("hidden"), _shut(None)]
        return {**await cluster(admin), "different": different, "shut": shut}

    return result


def _shut(topic: str | None) -> dict[str, Any]:
    """Return a replica that is shut, as a node reports it."""
    return {
        **{"topic": topic, "partition": 0, "node": "node1", "index": 7, "leads": True, "step": "apply"},
        "error": f"error of {topic}",
    }


async def test_overview_shows_only_topics_of_the_caller(
    strict: Serving, web: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    for name in ("billing.bills", "shop.orders", "hidden"):
        await web.post("/topics", json={"name": name}, headers=admin)
    mail = bearer(await give(strict, "mail", "consume:billing.*/mail", "read:shop.*"))
    topics = (await web.get("/topics", headers=mail)).json()["topics"]
    assert [topic["name"] for topic in topics] == ["billing.bills", "shop.orders"]
    asked = []
    stats = Admin.stats

    async def counted(admin: Admin, topic: str) -> Any:
        asked.append(topic)
        return await stats(admin, topic)

    monkeypatch.setattr(Admin, "stats", counted)
    rows = (await web.get("/cluster/partitions", headers=mail)).json()["partitions"]
    assert {row["topic"] for row in rows} == {"billing.bills", "shop.orders"} == {*asked}
    shop = await web.get("/topics/shop.orders", headers=mail)
    assert shop.status_code == 200, shop.text
    assert (await web.get("/topics/shop.orders/messages", headers=mail)).status_code == 200
    monkeypatch.setattr(Admin, "cluster", _of_hidden(Admin.cluster))
    for headers, count, seen in ((mail, 2, []), (admin, 3, ["hidden"])):
        result = (await web.get("/cluster", headers=headers)).json()
        assert (result["topics"], [row["topic"] for row in result["different"]]) == (count, seen)
        assert [row["topic"] for row in result["shut"]] == [*seen, None]
        found = (await web.get("/overview", headers=headers)).text
        assert ("hidden" in found, "error of None" in found) == (bool(seen), True)
    assert (await web.get("/topics/hidden", headers=admin)).status_code == 200


async def test_refused_requests_do_not_use_the_topic_request_rate(strict: Serving, web: httpx.AsyncClient) -> None:
    admin = bearer(await give(strict, "boss", "admin"))
    made = {"name": "slow", "settings": {"max_request_rate": 1}}
    assert (await web.post("/topics", json=made, headers=admin)).status_code == 201
    text = await give(strict, "elsewhere", "writer:shop.*")
    for address in ("/topics/slow", "/topics/slow/messages"):
        answers = [await web.get(address, headers=bearer(text)) for _ in range(5)]
        assert [one.status_code for one in answers] == [403] * 5
    raw = await RawClient.connect(strict.client_port, hello=False)
    await raw.call(Type.HELLO, 2, "raw", {"token": text})
    refused = [await raw.call(Type.LIST, "slow", 0) for _ in range(5)]
    refused += [await raw.produce(b"x", topic="slow") for _ in range(5)]
    assert {answer[2] for answer in refused} == {"FORBIDDEN"}
    await trio.aclose_forcefully(raw.stream)
    assert (await web.get("/topics/slow/messages", headers=admin)).status_code == 200


async def test_quota_error_says_when_to_retry(strict: Serving, web: httpx.AsyncClient) -> None:
    own = bearer(await give(strict, "own", "admin", quota={"stored_bytes": 10}))
    for made in ({"name": "t"}, {"name": "k", "kind": "compacted"}):
        assert (await web.post("/topics", json=made, headers=own)).status_code == 201
    assert (await web.post("/topics/t", json={"text": "x" * 1000}, headers=own)).status_code == 201
    usage = strict.usage
    await until_holds(lambda: usage.held.get("token:own", NOTHING).stored_bytes > 10)
    for method, path, body in (
        ("POST", "/topics/t", {"text": "y"}),
        ("POST", "/topics/t", {"messages": [{"text": "y"}, {"text": "z"}]}),
        ("PUT", "/topics/k/keys/a", {"text": "v"}),
    ):
        refused = await web.request(method, path, json=body, headers=own)
        assert (refused.status_code, refused.json()["quota"]) == (429, "stored_bytes"), refused.text
        assert refused.headers["retry-after"] == "1"
