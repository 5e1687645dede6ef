"""Compacted topics whose keys have partition keys."""

from __future__ import annotations

import pytest

import sandq
from sandq.errors import InvalidRequest, InvalidSetting
from sandq.model.partitioning import partition_for
from sandq.node.running import Serving
from sandq.protocol.frames import Type, encode_frame
from tests.integration.conftest import Dial

OWNERS = ("ada", "bob", "cid", "dora", "eve")


@pytest.fixture
async def kv(api: sandq.Client) -> sandq.Keys:
    await api.admin.create_topic("t", kind="compacted", partitions=5, partition_delimiter="/")
    return api.kv("t")


async def test_keys_that_belong_together_are_in_one_partition(kv: sandq.Keys) -> None:
    pairs = {f"{owner}/{thing}": f"{owner} {thing}" for thing in ("lamp", "radio", "door") for owner in OWNERS}
    await kv.put_many(pairs)
    for owner in OWNERS:
        await kv.put(owner, "itself")
        found = [entry async for entry in kv.scan(prefix=f"{owner}/")]
        assert [entry.key.decode() for entry in found] == [f"{owner}/{thing}" for thing in ("door", "lamp", "radio")]
        assert {entry.partition for entry in found} == {partition_for(owner.encode(), 5)}
        entry = await kv.get(f"{owner}/lamp")
        assert entry is not None and entry.value == f"{owner} lamp".encode()
    read = await kv.get_many([*pairs, "ada/none", "none"])
    assert [entry and entry.value.decode() for entry in read] == [*pairs.values(), None, None]
    everything = [entry.key.decode() async for entry in kv.scan()]
    assert everything == sorted([*pairs, *OWNERS])
    assert [entry.key async for entry in kv.scan(prefix="ad")] == [b"ada", b"ada/door", b"ada/lamp", b"ada/radio"]
    some = [entry.key async for entry in kv.scan(start="bob/lamp", stop="bob/z")]
    assert some == [b"bob/lamp", b"bob/radio"]


async def test_a_scan_of_a_partition_key_asks_its_partition_alone(
    node: Serving, kv: sandq.Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    from sandq.broker.requests import kv_requests

    page = kv_requests._page

    def noted(replica, request, now_ms):  # type: ignore[no-untyped-def]
        asked.append(request.partition)
        return page(replica, request, now_ms)

    monkeypatch.setattr(kv_requests, "_page", noted)
    await kv.put("ada/lamp", "on")
    assert [entry.value async for entry in kv.scan(prefix="ada/")] == [b"on"]
    assert asked == [partition_for(b"ada", 5)]
    assert [entry.value async for entry in kv.scan(prefix="ada")] == [b"on"]
    assert sorted(asked[1:]) == [0, 1, 2, 3, 4]


async def test_a_watch_of_a_partition_key_asks_its_partition_alone(kv: sandq.Keys) -> None:
    async with kv.watch(prefix="ada/") as watch, kv.watch("bob/lamp") as one:
        assert [*watch.position] == [partition_for(b"ada", 5)]
        assert [*one.position] == [partition_for(b"bob", 5)]
        for key in ("bob/lamp", "ada/lamp"):
            await kv.put(key, "on")
        change = await anext(watch)
        assert (change.key, change.value) == (b"ada/lamp", b"on")
        assert (await anext(one)).key == b"bob/lamp"


async def test_a_key_has_one_value_and_conditions_hold(kv: sandq.Keys, api: sandq.Client) -> None:
    first = await kv.cas("ada/lamp", "on", expected=None)
    second = await kv.cas("ada/lamp", "off", expected=first)
    await api.produce("t", b"dim", key="ada/lamp")  # a plain producer chooses the same partition
    assert [entry.value async for entry in kv.scan()] == [b"dim"]
    assert second != first
    await kv.delete("ada/lamp")
    assert [entry async for entry in kv.scan()] == []


async def test_acks_send_keys_where_they_belong(kv: sandq.Keys, api: sandq.Client) -> None:
    await api.admin.create_topic("work")
    await api.produce("work", b"x")
    async with api.subscribe("work", group="g") as subscription:
        message = await anext(subscription)
        await message.ack(then=[sandq.Outgoing(b"on", "t", key="ada/lamp")])
        async with kv.watch("ada/lamp", start="earliest") as watch:
            assert (await anext(watch)).value == b"on"


async def test_request_to_a_wrong_partition_is_explained(dial: Dial, node: Serving, kv: sandq.Keys) -> None:
    raw = await dial(node)
    right = partition_for(b"ada", 5)
    wrong = (right + 1) % 5
    for request in (
        (Type.KV_GET, "t", wrong, False, [b"ada/lamp"]),
        (Type.KV_WATCH, "t", wrong, None, None, True, b"ada/lamp", b"ada/lamp\0", 10, 1000, 0),
    ):
        answer = await raw.call(*request)
        assert answer[2] == "INVALID" and f"belongs to partition {right}, not {wrong}" in answer[3]
        assert "the client is too old" in answer[3] and answer[5] == {"topic": "t", "belongs_to": right}
    assert (await raw.call(Type.KV_GET, "t", right, False, [b"ada/lamp"]))[3] == [None]
    other = next(name for name in map(str, range(99)) if partition_for(name.encode(), 5) == wrong).encode()
    asked = [[Type.KV_GET, number, "t", wrong, False, [key]] for number, key in ((71, other), (72, b"ada/lamp"))]
    await raw.send_bytes(b"".join(encode_frame(*frame) for frame in asked))
    answers = {answer[1]: answer for answer in [await raw.receive() for _ in asked]}
    assert answers[71][3] == [None] and answers[72][2] == "INVALID"  # only this key of the batch is refused


async def test_partition_delimiter_is_fixed_and_only_for_compacted_topics(kv: sandq.Keys, api: sandq.Client) -> None:
    for delimiter in (":", "none"):
        with pytest.raises(InvalidSetting, match="partition_delimiter: it is '/' since the topic was created"):
            await api.admin.update_topic("t", partition_delimiter=delimiter)
    topic = await api.admin.update_topic("t", history="5m", partition_delimiter="/")
    assert topic.settings["partition_delimiter"] == "/"
    with pytest.raises(InvalidSetting, match="partition_delimiter: unknown key"):
        await api.admin.create_topic("timer", partition_delimiter="/")
    for bad in ("", 17 * "x", "a\nb", 5):
        with pytest.raises(InvalidSetting, match="partition_delimiter: "):
            await api.admin.create_topic("bad", kind="compacted", partition_delimiter=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="only compacted ones have keys"):
        await api.admin.create_topic("timer")
        await api.kv("timer").get("x")
