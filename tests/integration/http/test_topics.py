"""Topics over HTTP."""

from __future__ import annotations

from tests.support.nodes.http_requests import Web


async def test_a_topic_from_its_making_to_its_end(web: Web) -> None:
    made = await web.post("/topics", {"name": "orders", "partitions": 3, "settings": {"lease": "1m", "ttl": "2h"}}, 201)
    assert (made["name"], made["kind"], made["partitions"], made["replicas"]) == ("orders", "timer", 3, 1)
    assert made["settings"]["lease"] == "1m" and made["settings"]["ttl"] == "2h"
    assert made["leaders"] == ["node1"] * 3
    assert [topic["name"] for topic in (await web.get("/topics"))["topics"]] == ["orders"]
    shown = await web.get("/topics/orders")
    assert [row["partition"] for row in shown["stats"]] == [0, 1, 2]
    changed = await web.patch("/topics/orders", {"settings": {"backoff": {"kind": "fixed", "first": "5s"}}})
    assert changed["settings"]["backoff"]["kind"] == "fixed" and changed["settings"]["lease"] == "1m"
    more = await web.patch("/topics/orders", {"partitions": 5, "settings": {"ttl": None}})
    assert (more["partitions"], more["leaders"], more["settings"]["ttl"]) == (5, ["node1"] * 5, None)
    assert (await web.patch("/topics/orders", {"numPartitions": 6, "replicationFactor": 1}))["partitions"] == 6
    found = (await web.get("/cluster/partitions", topic="orders"))["partitions"]
    assert [(row["partition"], row["nodes"], row["moving"], row["steps"]) for row in found] == [
        (partition, ["node1"], False, []) for partition in range(6)
    ]
    assert await web.delete("/topics/orders", 204) is None
    assert (await web.get("/cluster/partitions"))["partitions"] == []
    assert (await web.get("/topics"))["topics"] == []
    assert (await web.get("/topics/orders", 404))["code"] == "UNKNOWN_TOPIC"


async def test_returned_settings_can_be_used_to_create_a_topic(web: Web) -> None:
    made = await web.post("/topics", {"name": "a", "settings": {"retention": "1h", "backoff": {"factor": 1.5}}})
    again = await web.post("/topics", {"name": "b", "settings": made["settings"]})
    assert again["settings"] == made["settings"]


async def test_sandglass_calls(web: Web) -> None:
    """Requests as users of doq type them. The first has no JSON content type."""
    response = await web.raw(
        "POST",
        "/topics",
        content='{"name": "payments", "kind": 0, "replicationFactor": 1, "numPartitions": 6}',
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert response.status_code == 201 and response.json()["partitions"] == 6
    response = await web.raw(
        "POST",
        "/topics/payments",
        content='{"value": "eyJoZWxsbyI6ICJ3b3JsZCIgfQo="}',
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 201
    found = await web.post("/topics/payments/groups/g/lease")
    assert found["messages"][0]["text"] == '{"hello": "world" }\n'


NO_TOPICS: list[tuple[object, int, str, str]] = [
    ({}, 400, "INVALID", "body.name: Field required"),
    ({"name": 5}, 400, "INVALID", "body.name"),
    ({"name": "a/b"}, 400, "INVALID_NAME", "the rule"),
    ({"name": ""}, 400, "INVALID_NAME", "the rule"),
    ({"name": "sandq.limits"}, 400, "INVALID_NAME", "names that begin with 'sandq.' are reserved"),
    ({"name": "x" * 250}, 400, "INVALID_NAME", "250 characters"),
    ({"name": "t", "partitions": 0}, 400, "INVALID", "body.partitions"),
    ({"name": "t", "partitions": "6"}, 400, "INVALID", "body.partitions"),
    ({"name": "t", "partitions": True}, 400, "INVALID", "body.partitions"),
    ({"name": "t", "partitions": 5000}, 400, "INVALID", "4096"),
    ({"name": "t", "partitions": 1, "numPartitions": 1}, 400, "INVALID", "mean the same"),
    ({"name": "t", "replicas": 2}, 400, "INVALID", "2 replicas, and 1 nodes"),
    ({"name": "t", "kind": "fast"}, 400, "INVALID", "body.kind"),
    ({"name": "t", "kind": 7}, 400, "INVALID", "body.kind"),
    ({"name": "t", "partitons": 1}, 400, "INVALID", "body.partitons: Extra inputs"),
    ({"name": "t", "settings": {"lease": "soon", "leese": 1}}, 400, "INVALID_SETTING", "leese"),
    ({"name": "t", "settings": {"partitions": 1}}, 400, "INVALID_SETTING", "partitions"),
    ({"name": "t", "settings": []}, 400, "INVALID", "body.settings"),
    ([], 400, "INVALID", "body"),
    ("text", 400, "INVALID", "body"),
]


async def test_invalid_topics_are_rejected(web: Web) -> None:
    for body, status, code, words in NO_TOPICS:
        found = await web.post("/topics", body, status)
        assert found["code"] == code and words in found["detail"], (body, found)
        assert (await web.get("/topics"))["topics"] == [], "nothing half done"


async def test_existing_topic_is_not_created_again(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    assert (await web.post("/topics", {"name": "t"}, 409))["code"] == "TOPIC_EXISTS"


async def test_invalid_topic_changes_are_rejected(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    wrong: list[object] = [{}, {"settings": {}}, {"settings": {"nope": 1}}, {"settings": {"ordering": "key"}}]
    for body in wrong:
        assert (await web.patch("/topics/t", body, 400))["retriable"] is False, body


async def test_purge_and_forecast(web: Web) -> None:
    await web.post("/topics", {"name": "t", "partitions": 2})
    for n in range(5):
        await web.post("/topics/t", {"text": str(n), "delay": "90s"})
    told = await web.get("/topics/t/forecast", unit="minute", count=10)
    assert sum(bucket["messages"] for bucket in told["buckets"]) == 5 and told["later"] == 0
    assert (await web.get("/topics/t/forecast", unit="second", count=1))["later"] == 5
    assert (await web.post("/topics/t/purge"))["done"] == 5
    assert (await web.get("/topics/t/forecast"))["buckets"] == []


async def test_invalid_forecast_parameters_are_rejected(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    wrong: list[dict[str, object]] = [
        {"unit": "day"},
        {"count": 0},
        {"count": "x"},
        {"count": 10**9},
        {"units": "hour"},
    ]
    for params in wrong:
        assert next(iter(params)) in (await web.get("/topics/t/forecast", 400, **params))["detail"]
