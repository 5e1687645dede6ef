"""`/openapi.json` for generators of clients: short names, tags, and bodies that can be sent."""

from __future__ import annotations

from typing import Any

from sandq.server.http.examples import BODIES
from tests.support.nodes.http_requests import Web

METHODS = {"get", "post", "put", "patch", "delete"}
# The subject of each path: the first ones create it.
FIRST = ("createTopic", "produce", "leaseMessages", "createSchedules", "setLimit")
PLACES = {"topic": "orders", "group": "g", "partition": "0", "key": "ada", "name": "stand-up", "node": "node1",
          "limit": "llm", "principal": "cert:till-7", "backup": "20300131T080000Z-0a1b2c"}  # fmt: skip
# These requests name nothing that exists. Their errors show that they were understood.
FIXED_NAMES = {
    "ackMessages": "LEASE_LOST",
    "nackMessages": "LEASE_LOST",
    "rejectMessages": "LEASE_LOST",
    "extendLeases": "LEASE_LOST",
    "pauseByLease": "LEASE_LOST",
    "transferPartition": "INVALID",
    "rebuildReplica": "INVALID",
    "finalizeCluster": "CONFLICT",
    "rotateToken": "NOT_FOUND",
    "createBackup": "CONFLICT",
    "restoreBackup": "CONFLICT",
    "runSql": "CONFLICT",
}


async def operations(web: Web) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """(method, path, description) by operationId."""
    paths = (await web.get("/openapi.json"))["paths"]
    found = [(method, path, one) for path, methods in paths.items() for method, one in methods.items()]
    assert {method for method, _, _ in found} <= METHODS
    by_name = {one["operationId"]: (method.upper(), path, one) for method, path, one in found}
    assert len(by_name) == len(found)
    return by_name


async def test_operations_have_short_names_of_their_own(web: Web) -> None:
    for name, (_, _, operation) in (await operations(web)).items():
        assert name.isalpha() and name[0].islower() and len(name) <= 20, name
        assert len(operation["tags"]) == 1 and operation["summary"], name


async def test_every_body_has_an_example_that_can_be_sent(web: Web) -> None:
    found = await operations(web)
    with_body = {name for name, (_, _, operation) in found.items() if "requestBody" in operation}
    assert with_body == BODIES.keys()
    await web.post("/topics", {"name": "config", "kind": "compacted"})
    stored = None
    for name in (*FIRST, *sorted(with_body.difference(FIRST))):
        method, path, operation = found[name]
        example = operation["requestBody"]["content"]["application/json"]["example"]
        topic = "config" if "{key}" in path else "orders"
        message = "" if stored is None else stored["id"]
        url = path.format(**PLACES | {"topic": topic, "message": message})
        # No message is due, and the request does not wait.
        body = example | {"wait": 0} if name == "leaseMessages" else example
        response = await web.raw(method, url, json=body)
        code = None if response.is_success else response.json()["code"]
        assert code == FIXED_NAMES.get(name), (name, response.text)
        if name == "produce":
            stored = response.json()


def schemas_of(schema: Any) -> list[dict[str, Any]]:
    """Yield all schemas that describe a value, at any depth."""
    if isinstance(schema, list):
        return [one for inner in schema for one in schemas_of(inner)]
    if not isinstance(schema, dict):
        return []
    here = [schema] if isinstance(schema.get("type"), str) or "anyOf" in schema or "oneOf" in schema else []
    return here + [one for name, inner in schema.items() if name != "example" for one in schemas_of(inner)]


async def test_schemas_suit_code_generators(web: Web) -> None:
    document = await web.get("/openapi.json")
    found = schemas_of(document)
    assert len(found) > 300
    for schema in found:
        assert not isinstance(schema.get("title"), str), "a title would become a comment that repeats the name"
        assert schema.get("type") != "integer" or schema["format"] == "int64", (
            "without a format it would have 32 bits in Java"
        )
        assert schema.get("type") != "number" or schema["format"] == "double", (
            "without a format it would have 32 bits in Go"
        )
        assert not ("properties" in schema and schema.get("additionalProperties") is True), "typos would pass"
        assert schema.get("type") != "integer" or isinstance(schema.get("maximum", 0), int), (
            "a bound must not be written as 4095.0"
        )


async def test_choices_have_names_and_queries_no_null(web: Web) -> None:
    for name, (_, _, operation) in (await operations(web)).items():
        for parameter in operation.get("parameters", ()):
            assert {"type": "null"} not in parameter["schema"].get("anyOf", ()), name
        for part in (operation.get("requestBody", {}), *operation["responses"].values()):
            for content in part.get("content", {}).values():
                assert not {"anyOf", "oneOf"} & content["schema"].keys(), name
    schemas = (await web.get("/openapi.json"))["components"]["schemas"]
    assert {"ProduceIn", "ProduceAnswer", "CreateSchedulesIn", "CreateSchedulesAnswer"} <= schemas.keys()
    assert "ProduceToIn" not in schemas, "equal choices must have one name"


async def test_message_fields_are_in_the_document(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    await web.post("/topics/t/groups/g/lease", {})
    sent = {"text": "x", "key": "u", "headers": {"n": 1}, "unique_key": "u", "ttl": "1h"}
    stored = await web.post("/topics/t", sent)
    (leased,) = (await web.post("/topics/t/groups/g/lease", {}))["messages"]
    found = await web.get(f"/topics/t/messages/{stored['id']}")
    await web.post("/topics/t/groups/g/dead", {"messages": [leased]})
    (dead,) = (await web.get("/topics/t/groups/g/dead?values=true"))["messages"]
    schemas = (await web.get("/openapi.json"))["components"]["schemas"]
    for name, answer in (("Stored", stored), ("Leased", leased), ("StoredMessage", found), ("DeadLetter", dead)):
        assert answer.keys() <= schemas[name]["properties"].keys(), name
        assert set(schemas[name]["required"]) <= answer.keys(), name
        assert None not in answer.values() or name != "Leased", "missing fields of a message must be left out"
