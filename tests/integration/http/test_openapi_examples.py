"""What `/openapi.json` tells generators of clients: short names, tags, and bodies that can be sent."""

from __future__ import annotations

from typing import Any

from sandq.server.http.examples import BODIES
from tests.support.nodes.http_requests import Web

METHODS = {"get", "post", "put", "patch", "delete"}
# What each path is about: the first ones make it.
FIRST = ("createTopic", "produce", "leaseMessages", "createSchedules")
PLACES = {"topic": "orders", "group": "g", "partition": "0", "key": "ada", "name": "stand-up", "node": "node1"}
# They name nothing that is there: what they are refused with shows that they were understood.
FIXED_NAMES = {
    "ackMessages": "LEASE_LOST",
    "nackMessages": "LEASE_LOST",
    "rejectMessages": "LEASE_LOST",
    "extendLeases": "LEASE_LOST",
    "transferPartition": "INVALID",
    "rebuildReplica": "INVALID",
}


async def operations(web: Web) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """(method, path, what is told) by operationId."""
    paths = (await web.get("/openapi.json"))["paths"]
    found = [(method, path, one) for path, methods in paths.items() for method, one in methods.items()]
    assert {method for method, _, _ in found} <= METHODS
    by_name = {one["operationId"]: (method.upper(), path, one) for method, path, one in found}
    assert len(by_name) == len(found)
    return by_name


async def test_operations_have_short_names_of_their_own(web: Web) -> None:
    for name, (_, _, told) in (await operations(web)).items():
        assert name.isalpha() and name[0].islower() and len(name) <= 20, name
        assert len(told["tags"]) == 1 and told["summary"], name


async def test_every_body_has_an_example_that_can_be_sent(web: Web) -> None:
    found = await operations(web)
    with_body = {name for name, (_, _, told) in found.items() if "requestBody" in told}
    assert with_body == BODIES.keys()
    await web.post("/topics", {"name": "config", "kind": "compacted"})
    stored = None
    for name in (*FIRST, *sorted(with_body.difference(FIRST))):
        method, path, told = found[name]
        example = told["requestBody"]["content"]["application/json"]["example"]
        topic = "config" if "{key}" in path else "orders"
        message = "" if stored is None else stored["id"]
        url = path.format(**PLACES | {"topic": topic, "message": message})
        # Nothing is due, and nothing is waited for here.
        body = example | {"wait": 0} if name == "leaseMessages" else example
        response = await web.raw(method, url, json=body)
        code = None if response.is_success else response.json()["code"]
        assert code == FIXED_NAMES.get(name), (name, response.text)
        if name == "produce":
            stored = response.json()
