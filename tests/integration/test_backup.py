"""A cluster is backed up and restored: in itself under other names, and in another cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import sandq
from sandq.backup import (
    BackupKey,
    DamagedBackup,
    NoBackup,
    WrongKey,
    create_backup,
    delete_backup,
    list_backups,
    open_location,
    restore_backup,
    verify_backup,
)
from sandq.client.backups import BackupTransfer
from sandq.errors import (
    Conflict,
    Forbidden,
    InvalidName,
    InvalidRequest,
    InvalidSetting,
    NotFound,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from sandq.model.caller import NODE
from sandq.model.principals import token_hash, token_text
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.requests_access import IdentityPut
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take
from tests.support.waiting import until_answer

HOUR_MS = 3_600_000


@pytest.fixture
def location(tmp_path: Path) -> Any:
    return open_location(str(tmp_path / "backups"))


@pytest.fixture
def key() -> BackupKey:
    return BackupKey(os.urandom(32))


async def _filled(api: sandq.Client, name: str = "t") -> dict[str, Any]:
    """A topic with messages in every state."""
    await api.admin.create_topic(name, partitions=2, max_attempts=2, backoff={"kind": "none"})
    ids = [await api.produce(name, b"%d" % number, key=b"%d" % number, delay="2h") for number in range(6)]
    async with api.subscribe(name, group="g", credit=1) as subscription:
        await api.produce(name, b"acked", partition=0)
        await take(subscription, 1)
        await api.produce(name, b"dead", partition=0)
        for _ in range(2):
            (message,) = await take(subscription, 1, ack=False)
            await message.nack(error="no")
        await api.produce(name, b"held", partition=0)
        (held,) = await take(subscription, 1, ack=False)
        assert held.value == b"held"
    return {"ids": ids, "states": await _states(api, name)}


async def _states(api: sandq.Client, name: str) -> dict[str, tuple[Any, ...]]:
    """Return all stored data, except messages that may be trimmed at any time because all groups have acked them."""
    messages = api.messages(name)
    return {
        one.id: (one.value, one.deliver_at_ms, one.key)
        async for one in messages.list()
        if one.state not in ("acked", "dead")
    }


async def test_topic_is_restored_under_another_name_with_all_content(api: sandq.Client, location: Any) -> None:
    before = await _filled(api)
    manifest = await create_backup(api, location)
    assert [topic.name for topic in manifest.topics] == ["t"] and len(manifest.parts) == 2
    restored = await restore_backup(api, location, manifest.backup_id, names={"t": "u"})
    assert restored.topics == {"t": "u"} and restored.paused_groups == {"u": ["g"]} and restored.partitions == 2
    assert await _states(api, "u") == before["states"]
    record = await api.admin.topic("u")
    assert record.settings["max_attempts"] == 2 and "restoring" not in record.settings
    rows = await api.admin.groups("u")
    assert all("paused" in row["reason"] for row in rows), rows
    assert sum(row["dead"] for row in rows) == 1
    async with api.subscribe("u", group="g", credit=5) as subscription:
        await api.admin.resume_group("u", "g")
        (held,) = await take(subscription, 1)
        assert (held.value, held.attempt) == (b"held", 1)
    new = await api.produce("u", b"new", key=b"1", delay="2h")
    assert new not in before["ids"]


async def test_named_limits_are_restored_unused(api: sandq.Client, location: Any, tmp_path: Path) -> None:
    await api.admin.set_limit("llm", max_in_flight=2)
    await api.admin.create_topic("t", lease="1h")
    await api.admin.limit_group("t", "g", limit="llm")
    for number in range(4):
        await api.produce("t", b"%d" % number)
    held: list[sandq.LeasedMessage] = []
    while len(held) < 2:
        held += await api.leases("t", "g").take(4, wait="1m")
    manifest = await create_backup(api, location)
    with pytest.raises(InvalidName, match="reserved"):
        await restore_backup(api, location, manifest.backup_id, names={"t": "sandq.limits"}, topics=["t"])
    async with run_node(small_config(tmp_path / "other")) as serving, connected(serving) as other:
        restored = await restore_backup(other, location, manifest.backup_id)
        assert ({*restored.topics}, restored.limits, restored.warnings) == ({"t"}, ["llm"], [])
        limit = await other.admin.limit("llm")
        assert (limit["max_in_flight"], limit["given"]) == (2, 0)
        assert all(member["given"] == 0 for member in limit["members"]), "the group may have joined already"
        await other.admin.resume_group("t", "g")
        again: list[sandq.LeasedMessage] = []
        while len(again) < 2:
            again += await other.leases("t", "g").take(4, wait="1m")
        assert len(again) == 2 and await other.leases("t", "g").take(4) == []


async def _limited(api: sandq.Client, topic: str, limit: str, **options: Any) -> None:
    """Create a limit, and a topic whose group uses it."""
    await api.admin.set_limit(limit, **options)
    await api.admin.create_topic(topic)
    await api.admin.limit_group(topic, "g", limit=limit)


async def test_named_limits_of_the_cluster_stay_and_others_are_set(
    api: sandq.Client, location: Any, tmp_path: Path
) -> None:
    await _limited(api, "t", "equal", rate="7/m", unit="tokens", max_in_flight=3)
    await _limited(api, "u", "changed", rate=5, burst=9)
    await _limited(api, "v", "new", max_in_flight=4)
    await api.admin.set_limit("unused", max_in_flight=8)
    manifest = await create_backup(api, location)
    async with run_node(small_config(tmp_path / "other")) as serving, connected(serving) as other:
        await other.admin.set_limit("equal", rate="7/m", unit="tokens", max_in_flight=3)
        await other.admin.set_limit("changed", rate=6, burst=9)
        some = await restore_backup(other, location, manifest.backup_id, topics=["t", "v"], prefix="some-")
        assert (some.limits, some.warnings) == (["new"], [])
        restored = await restore_backup(other, location, manifest.backup_id)
        assert ({*restored.topics}, restored.limits) == ({"t", "u", "v"}, ["unused"])
        (warning,) = restored.warnings
        assert warning == (
            "limit changed is different in the backup, and stays as it is in the cluster: rate 6/s, burst 9"
        )
        rates = {row["limit"]: (row["rate"], row["max_in_flight"]) for row in await other.admin.limits()}
        assert rates == {"equal": ("7/m", 3), "changed": ("6/s", None), "new": (None, 4), "unused": (None, 8)}
        assert (await other.admin.topic("u")).settings["group_limits"][1]["g"][2:] == ["changed"]


async def test_topic_with_a_limit_that_nobody_defines_is_not_restored(
    api: sandq.Client, location: Any, tmp_path: Path
) -> None:
    await _limited(api, "t", "llm", max_in_flight=3)
    manifest = await create_backup(api, location, topics=["t"])
    async with run_node(small_config(tmp_path / "other")) as serving, connected(serving) as other:
        with pytest.raises(NotFound, match="'llm', which neither the backup nor the cluster has; set it first"):
            await restore_backup(other, location, manifest.backup_id)
        transfer, (topic,) = BackupTransfer(other), manifest.topics
        with pytest.raises(NotFound, match="there is no limit 'llm'"):
            await transfer.restore_topic("t", topic.made_with, 1, "r")
        defined = {"group_limits": [2, {"g": [1, 0, 3, None, None, None]}]}
        with pytest.raises(InvalidSetting, match=r"only the topic 'sandq.limits' defines named limits"):
            await transfer.restore_topic("t", {**topic.made_with, "settings": defined}, 1, "r")
        with pytest.raises(InvalidName, match="reserved"):
            await transfer.restore_topic("sandq.limits", {**topic.made_with, "settings": {}}, 1, "r")
        assert await other.admin.list_topics() == []
        await other.admin.set_limit("llm", max_in_flight=5)
        restored = await restore_backup(other, location, manifest.backup_id)
        assert ({*restored.topics}, restored.limits, restored.warnings) == ({"t"}, [], [])


async def test_a_topic_that_is_there_is_not_written_over(api: sandq.Client, location: Any) -> None:
    await api.admin.create_topic("t")
    manifest = await create_backup(api, location)
    with pytest.raises(TopicExists):
        await restore_backup(api, location, manifest.backup_id)
    with pytest.raises(NoBackup, match="no topic 'x'"):
        await restore_backup(api, location, manifest.backup_id, topics=["x"])
    with pytest.raises(UnknownTopic):
        await restore_backup(api, location, manifest.backup_id, names={"x": "y"})
    with pytest.raises(InvalidRequest, match="no identities"):
        await restore_backup(api, location, manifest.backup_id, names={"t": "u"}, identities=True)
    with pytest.raises(UnknownTopic):
        await create_backup(api, location, topics=["x"])


async def test_keys_and_schedules_come_back(api: sandq.Client, location: Any) -> None:
    await api.admin.create_topic("k", kind="compacted")
    keys = api.kv("k")
    await keys.put("a", b"1")
    entry = await keys.get("a")
    await api.admin.create_topic("s")
    await api.schedules("s").create("tick", b"v", every="1h")
    manifest = await create_backup(api, location, topics=["k", "s"])
    await restore_backup(api, location, manifest.backup_id, prefix="r-")
    assert await api.kv("r-k").get("a") == entry
    assert [one.name async for one in api.schedules("r-s").list()] == ["tick"]
    await api.kv("r-k").put("a", b"2")


async def test_dead_letters_go_to_the_topic_that_was_restored_for_them(api: sandq.Client, location: Any) -> None:
    await api.admin.create_topic("z-dead")
    await api.admin.create_topic("t", max_attempts=1, dead_letter_topic="z-dead")
    manifest = await create_backup(api, location)
    both = await restore_backup(api, location, manifest.backup_id, prefix="r-")
    assert not both.warnings
    assert (await api.admin.topic("r-t")).settings["dead_letter_topic"] == "r-z-dead"
    await api.produce("r-t", b"x")
    async with api.subscribe("r-t", group="g") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        await message.nack(error="no")
    async with api.subscribe("r-z-dead", group="g") as subscription:
        assert [one.value for one in await take(subscription, 1)] == [b"x"]
    alone = await restore_backup(api, location, manifest.backup_id, topics=["t"], prefix="a-")
    assert (await api.admin.topic("a-t")).settings["dead_letter_topic"] == "z-dead" and not alone.warnings


async def test_a_restore_that_was_stopped_goes_on_and_shows_until_then(
    node: Serving, api: sandq.Client, location: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await _filled(api)
    manifest = await create_backup(api, location)
    from sandq.client.backups import BackupTransfer

    ends: list[int] = []
    end = BackupTransfer.end_partition

    async def once(self: Any, *args: Any) -> Any:
        ends.append(1)
        if len(ends) == 2:
            raise Unavailable("stopped here")
        return await end(self, *args)

    monkeypatch.setattr(BackupTransfer, "end_partition", once)
    with pytest.raises(Unavailable):
        await restore_backup(api, location, manifest.backup_id, names={"t": "u"}, at_once=1)
    assert (await api.admin.topic("u")).settings["restoring"].startswith(manifest.backup_id)
    async with connected(node, timeout="200ms", delivery_timeout="200ms") as hasty:
        with pytest.raises(Unavailable, match="being restored"):
            await hasty.produce("u", b"x", partition=0)
        with pytest.raises(Conflict, match="being restored"):
            await hasty.admin.update_topic("u", max_attempts=3)
    restored = await restore_backup(api, location, manifest.backup_id, names={"t": "u"})
    assert restored.partitions == 2
    assert await _states(api, "u") == before["states"]


async def test_a_restore_that_was_stopped_among_topics_that_are_open_goes_on(
    api: sandq.Client, location: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await _filled(api)
    await api.admin.create_topic("other")
    manifest = await create_backup(api, location)
    opens: list[str] = []
    open_topic = BackupTransfer.open_topic

    async def once(self: Any, topic: str, *args: Any) -> None:
        opens.append(topic)
        if len(opens) == 2:
            raise Unavailable("stopped here")
        await open_topic(self, topic, *args)

    monkeypatch.setattr(BackupTransfer, "open_topic", once)
    with pytest.raises(Unavailable):
        await restore_backup(api, location, manifest.backup_id, prefix="r-")
    await api.produce("r-other", b"new", delay="1h")
    restored = await restore_backup(api, location, manifest.backup_id, prefix="r-")
    assert set(restored.topics) == {"t", "other"} and opens == ["r-other", "r-t", "r-t"]
    assert await _states(api, "r-t") == before["states"]
    assert len(await _states(api, "r-other")) == 1
    with pytest.raises(TopicExists):
        await restore_backup(api, location, manifest.backup_id, prefix="r-")


async def test_restore_creates_nothing_if_a_topic_exists(api: sandq.Client, location: Any) -> None:
    await api.admin.create_topic("a")
    await api.admin.create_topic("b")
    manifest = await create_backup(api, location)
    await api.admin.create_topic("r-b")
    with pytest.raises(TopicExists, match="r-b"):
        await restore_backup(api, location, manifest.backup_id, prefix="r-")
    assert [topic.name for topic in await api.admin.list_topics()] == ["a", "b", "r-b"]


async def test_a_restore_that_is_begun_twice_comes_to_one_end(
    api: sandq.Client, location: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await _filled(api)
    manifest = await create_backup(api, location)
    begin, is_first = BackupTransfer.begin_partition, [True]

    async def other_is_first(self: Any, *args: Any) -> Any:
        found = await begin(self, *args)
        if is_first.pop() if is_first else False:
            await restore_backup(api, location, manifest.backup_id, names={"t": "u"})
        return found

    monkeypatch.setattr(BackupTransfer, "begin_partition", other_is_first)
    restored = await restore_backup(api, location, manifest.backup_id, names={"t": "u"}, at_once=1)
    assert restored.partitions == 2
    assert await _states(api, "u") == before["states"]


async def test_a_half_restored_topic_can_be_deleted(api: sandq.Client, location: Any) -> None:
    await api.admin.create_topic("t")
    manifest = await create_backup(api, location)
    from sandq.client.backups import BackupTransfer

    transfer = BackupTransfer(api)
    await transfer.restore_topic("u", manifest.topics[0].made_with, 1, "r")
    await transfer.begin_partition("u", 0, "r", [])
    await api.admin.delete_topic("u")
    with pytest.raises(UnknownTopic):
        await api.admin.topic("u")


async def test_damaged_truncated_or_foreign_backup_is_refused_with_its_position(
    api: sandq.Client, location: Any, tmp_path: Path
) -> None:
    await _filled(api)
    one, other = await create_backup(api, location), await create_backup(api, location)
    assert await verify_backup(location, one.backup_id) == one
    path = tmp_path / "backups" / one.backup_id / one.parts[0].files[0].name
    good = path.read_bytes()
    wrong = {
        "checksum": good[:200] + bytes([good[200] ^ 1]) + good[201:],
        "truncated": good[:-5],
        "after the end": good + b"x",
        "no file of a sandq backup": b"x" * len(good),
        "within its first": good[:10],
        "is expected": (tmp_path / "backups" / other.backup_id / other.parts[0].files[0].name).read_bytes(),
    }
    for words, data in wrong.items():
        path.write_bytes(data)
        with pytest.raises(DamagedBackup, match=words) as refused:
            await restore_backup(api, location, one.backup_id, prefix="r-")
        assert str(path) in refused.value.message and type(refused.value.details["byte"]) is int
    path.unlink()
    with pytest.raises(DamagedBackup, match="missing"):
        await verify_backup(location, one.backup_id)
    assert [topic.name for topic in await api.admin.list_topics()] == ["t"], "nothing was begun"


async def test_encrypted_backup_needs_its_key(api: sandq.Client, location: Any, key: BackupKey, tmp_path: Path) -> None:
    await api.admin.create_topic("secret-name")
    await api.produce("secret-name", b"secret value", delay="1h")
    manifest = await create_backup(api, location, key=key)
    assert await verify_backup(location, manifest.backup_id, key=key) == manifest
    for given in (None, BackupKey(os.urandom(32))):
        with pytest.raises(WrongKey):
            await verify_backup(location, manifest.backup_id, key=given)
    (listed,) = await list_backups(location)
    assert listed.manifest is None and "encrypted" in (listed.problem or "")
    everything = b"".join(path.read_bytes() for path in (tmp_path / "backups").rglob("*") if path.is_file())
    assert b"secret value" not in everything
    await restore_backup(api, location, manifest.backup_id, prefix="r-", key=key)
    plain = await create_backup(api, location)
    with pytest.raises(WrongKey, match="not encrypted"):
        await verify_backup(location, plain.backup_id, key=key)


async def test_a_backup_that_was_stopped_is_none_and_goes_on(
    api: sandq.Client, location: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _filled(api)
    from sandq.backup import create

    write = create.manifests.write
    monkeypatch.setattr(create.manifests, "write", _raises)
    with pytest.raises(NotFound):
        await create_backup(api, location)
    monkeypatch.setattr(create.manifests, "write", write)
    (listed,) = await list_backups(location)
    assert listed.is_unfinished
    with pytest.raises(NoBackup):
        await verify_backup(location, listed.backup_id)
    with pytest.raises(NoBackup):
        await create_backup(api, location, resume="20000101T000000Z-000000")
    manifest = await create_backup(api, location, resume=listed.backup_id)
    assert manifest.backup_id == listed.backup_id
    assert await verify_backup(location, listed.backup_id) == manifest
    assert await create_backup(api, location, resume=listed.backup_id) == manifest
    await delete_backup(location, listed.backup_id)
    assert await list_backups(location) == []


async def test_going_on_takes_no_topic_for_another_one(
    api: sandq.Client, location: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandq.backup import create

    await api.admin.create_topic("t")
    await api.produce("t", b"old", delay="1h")
    monkeypatch.setattr(create.manifests, "write", _raises)
    with pytest.raises(NotFound):
        await create_backup(api, location)
    monkeypatch.undo()
    await api.admin.delete_topic("t")
    await api.admin.create_topic("t")
    await api.produce("t", b"new", delay="1h")
    (listed,) = await list_backups(location)
    with location.hold(listed.backup_id), pytest.raises(Conflict, match="by another process"):
        await create_backup(api, location, resume=listed.backup_id)
    manifest = await create_backup(api, location, resume=listed.backup_id)
    await restore_backup(api, location, manifest.backup_id, prefix="r-")
    assert await _states(api, "r-t") == await _states(api, "t") and len(await _states(api, "t")) == 1


def _raises(*args: Any) -> None:
    raise NoBackup("stopped here")


async def test_backup_in_fsspec_location_can_be_restored(api: sandq.Client) -> None:
    location = open_location("memory://backups/of")
    assert await list_backups(location) == []
    await api.admin.create_topic("t")
    await api.produce("t", b"x", delay="1h")
    manifest = await create_backup(api, location)
    assert [one.manifest for one in await list_backups(location)] == [manifest]
    await restore_backup(api, location, manifest.backup_id, prefix="r-")
    assert await _states(api, "r-t") == await _states(api, "t")
    await delete_backup(location, manifest.backup_id)
    assert await list_backups(location) == []


async def test_identities_and_roles_come_back_with_their_tokens(
    api: sandq.Client, location: Any, tmp_path: Path
) -> None:
    await api.admin.put_role("writers", ["produce:t"])
    token = await api.admin.create_token("ada", ["writers"])
    manifest = await create_backup(api, location, identities=True)
    assert token.text not in repr(manifest)
    async with run_node(small_config(tmp_path / "other")) as other, connected(other) as there:
        restored = await restore_backup(there, location, manifest.backup_id, identities=True)
        assert restored.identities == 1
        async with connected(other, token=token.text) as ada:
            assert (await ada.admin.whoami()).principal == "token:ada"
        await there.admin.revoke_token("ada")
        await there.admin.create_token("ada", ["read:t"])
        again = await restore_backup(there, location, manifest.backup_id, identities=True)
        assert again.identities == 0 and "ada" in again.warnings[0]


async def test_export_without_reader_is_released(api: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandq.broker.backups import exports
    from sandq.client.backups import BackupTransfer

    monkeypatch.setattr(exports, "CHECK_S", 0.01)
    await api.admin.create_topic("t")
    transfer = BackupTransfer(api)
    begun = await transfer.begin("t", 0)
    await transfer.end("t", 0, begun["export"])
    with pytest.raises(NotFound):
        await transfer.read("t", 0, begun["export"], None)
    monkeypatch.setattr(exports, "IDLE_S", 0.0)
    forgotten = await transfer.begin("t", 0)

    async def is_gone() -> bool:
        try:
            await transfer.read("t", 0, forgotten["export"], None)
        except NotFound:
            return True
        return False

    await until_answer(is_gone, bool)


async def test_a_topic_is_not_opened_before_all_of_it_is_there(api: sandq.Client, location: Any) -> None:
    await _filled(api, "whole")
    manifest = await create_backup(api, location, topics=["whole"])
    transfer, (part,) = BackupTransfer(api), manifest.topics
    await transfer.restore_topic("half", part.made_with, 1, "r-half")
    with pytest.raises(Conflict, match="not restored yet"):
        await transfer.open_topic("half", "r-half", None)
    for number in range(2):
        await transfer.begin_partition("half", number, "r-half", [])
    with pytest.raises(Conflict, match="partitions 0, 1 are not"):
        await transfer.open_topic("half", "r-half", None)
    assert "restoring" in (await api.admin.topic("half")).settings


async def test_topics_without_rights_are_reported(location: Any, tmp_path: Path) -> None:
    token = token_text(bytes(range(32)))
    async with run_node(small_config(tmp_path / "strict", SECURITY__AUTHENTICATION="require")) as strict:
        for name, grants in (("all", ["admin"]), ("some", ["cluster", "read:mine"])):
            text = token if name == "some" else token_text(bytes(32))
            fields = {"grants": grants, "secret_hash": token_hash(text)}
            await strict.identities.put(IdentityPut(f"token:{name}", True, fields), NODE)
        async with connected(strict, token=token_text(bytes(32))) as admin:
            for name in ("a", "mine", "z"):
                await admin.admin.create_topic(name)
            assert not (await create_backup(admin, location)).warnings
        async with connected(strict, token=token) as some:
            manifest = await create_backup(some, location)
            assert [topic.name for topic in manifest.topics] == ["mine"]
            (warning,) = manifest.warnings
            assert warning.startswith("2 topics are left out")
            assert not (await create_backup(some, location, topics=["mine"])).warnings
            with pytest.raises(Forbidden):
                await create_backup(some, location, identities=True)
            with pytest.raises(Forbidden):
                await restore_backup(some, location, manifest.backup_id, prefix="r-")
