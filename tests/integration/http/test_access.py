"""Tokens, identities and roles over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from sandq.node.running import Serving
from tests.integration.test_identities import give
from tests.support.http_client import NO_TLS
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("node_time")


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Serving]:
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", SECURITY__AUTHENTICATION="require")
    async with run_node(config) as serving:
        yield serving


@pytest.fixture
async def boss(strict: Serving) -> AsyncIterator[httpx.AsyncClient]:
    """An identity with all rights."""
    assert strict.http is not None
    url = "http://{}:{}".format(*strict.http)
    headers = {"authorization": f"Bearer {await give(strict, 'boss', 'admin')}"}
    async with httpx.AsyncClient(verify=NO_TLS, base_url=url, headers=headers, timeout=PATIENCE_S) as client:
        yield client


async def test_a_token_is_made_used_rotated_and_revoked(boss: httpx.AsyncClient) -> None:
    made = await boss.post("/tokens", json={"name": "app", "grants": ["read:a.*"], "expires_in": "90d"})
    assert made.status_code == 201 and made.json()["expires_at"] is not None
    assert (await boss.post("/tokens", json={"name": "app", "grants": ["read"]})).status_code == 409
    listed = (await boss.get("/tokens")).json()["identities"]
    assert {"token:app", "token:boss"} <= {one["principal"] for one in listed}
    assert all("token" not in one for one in listed)
    mine = {"authorization": f"Bearer {made.json()['token']}"}
    whoami = (await boss.get("/whoami", headers=mine)).json()
    assert whoami == {"principal": "token:app", "grants": ["read:a.*"], "quota": {}}
    assert (await boss.get("/tokens", headers=mine)).status_code == 403
    rotated = await boss.post("/tokens/app/rotate", json={"expires_at": None})
    assert rotated.json()["expires_at"] is None and rotated.json()["token"] != made.json()["token"]
    assert (await boss.post("/tokens/app/rotate")).status_code == 200
    assert (await boss.delete("/tokens/app")).status_code == 204
    assert (await boss.delete("/tokens/app")).status_code == 404


@pytest.mark.parametrize("name", ["repo:octo/shop:environment:prod", "O=Acme/CN=till 7", "a%2Fb", "a/"])
async def test_a_principal_with_a_slash_is_read_changed_and_deleted(boss: httpx.AsyncClient, name: str) -> None:
    principal = f"jwt:{name}"
    at = f"/identities/{quote(principal, safe='')}"
    await boss.post("/identities", json={"principal": principal, "grants": ["read:a.*"]})
    assert (await boss.get(at)).json()["principal"] == principal
    assert (await boss.patch(at, json={"add": ["read:b.*"]})).json()["grants"] == ["read:a.*", "read:b.*"]
    assert (await boss.delete(at)).status_code == 204
    assert (await boss.get(at)).status_code == 404


async def test_identities_and_roles_are_changed(boss: httpx.AsyncClient) -> None:
    assert (await boss.put("/roles/payments", json={"grants": ["produce:pay.*"]})).status_code == 204
    made = await boss.post("/identities", json={"principal": "cert:till", "grants": ["payments"]})
    assert made.status_code == 201
    changed = await boss.patch(
        "/identities/cert:till", json={"add": ["read"], "quota": {"max_delay": "1d"}, "note": "a till"}
    )
    assert changed.json() | {"created_at": ""} == {
        "principal": "cert:till",
        "grants": ["payments", "read"],
        "created_at": "",
        "expires_at": None,
        "quota": {"max_delay_ms": 86_400_000},
        "note": "a till",
    }
    assert (await boss.get("/identities/cert:till")).json() == changed.json()
    assert (await boss.delete("/roles/payments")).status_code == 409
    roles = (await boss.get("/roles")).json()["roles"]
    assert roles[0]["built_in"] and roles[-1] == {"name": "payments", "grants": ["produce:pay.*"], "built_in": False}
    assert (await boss.delete("/identities/cert:till")).status_code == 204
    assert (await boss.delete("/roles/payments")).status_code == 204
    assert (await boss.get("/identities/cert:till")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokens", {"name": "no body", "grants": ["read"]}),
        ("/tokens", {"name": "app", "grants": []}),
        ("/tokens", {"name": "app", "grants": ["fly"]}),
        ("/tokens", {"name": "app", "grants": ["cluster:t"]}),
        ("/tokens", {"name": "app", "grants": ["read"], "expires_in": "1d", "expires_at": "2030-01-31T08:00:00Z"}),
        ("/tokens", {"name": "app", "grants": ["read"], "quota": {"nonsense": 1}}),
        ("/identities", {"principal": "ada", "grants": ["read"]}),
        ("/identities", {"principal": "token:ada", "grants": ["read"]}),
    ],
)
async def test_mistakes_are_reported(boss: httpx.AsyncClient, path: str, body: dict[str, object]) -> None:
    refused = await boss.post(path, json=body)
    assert refused.status_code == 400 and refused.json()["code"].startswith("INVALID"), refused.text


async def test_token_for_some_groups_cannot_settle_leases_of_others(strict: Serving, boss: httpx.AsyncClient) -> None:
    assert (await boss.post("/topics", json={"name": "t"})).status_code == 201
    for text in ("x", "y"):
        await boss.post("/topics/t", json={"text": text})
    theirs = (await boss.post("/topics/t/groups/billing/lease", json={})).json()["messages"][0]["lease_token"]
    mine = {"authorization": f"Bearer {await give(strict, 'mail', 'consume:t/mail-*')}"}
    leased = (await boss.post("/topics/t/groups/mail-eu/lease", json={}, headers=mine)).json()["messages"]
    for what, more in (("ack", {}), ("nack", {}), ("extend", {"lease": "1m"})):
        body = {"lease_token": theirs, **more}
        refused = await boss.post(f"/topics/t/groups/mail-eu/{what}", json=body, headers=mine)
        assert refused.status_code == 403, (what, refused.text)
    body = {"lease_token": leased[0]["lease_token"]}
    assert (await boss.post("/topics/t/groups/mail-eu/ack", json=body, headers=mine)).is_success
    assert (await boss.post("/topics/t/groups/billing/ack", json={"lease_token": theirs})).is_success
