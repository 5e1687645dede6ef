"""Tests of bulk jobs, dead letters, reads, and administration."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from sandq.client import offset_text
from sandq.client.client import Client
from sandq.client.json_format import dead_json
from sandq.client.messages.stored_message import DeadLetter, JobResult
from sandq.client.positions import offset_of, shift_ms, start_of
from sandq.model import offsets
from sandq.model.errors import (
    Conflict,
    InvalidName,
    InvalidRequest,
    InvalidSetting,
    InvalidTime,
    NotFound,
    NotLeader,
    ProtocolError,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from sandq.model.piece import Piece
from sandq.protocol.frames import Type, encode_reply
from sandq.protocol.replies_messages import encode_pieces
from tests.support.client.fake_messages import Stored
from tests.support.client.fake_server import CUT, NOW_MS, FakeServer
from tests.support.client.helpers import two_nodes

MINUTE_MS = 60_000


async def fill(client: Client, count: int, *, prefix: str = "k") -> list[str]:
    """Produce delayed messages, one minute apart, over all partitions."""
    rows = [
        {"value": b"%d" % n, "key": f"{prefix}{n}", "deliver_at": NOW_MS + n * MINUTE_MS} for n in range(1, count + 1)
    ]
    async with client.producer("t") as producer:
        return await (await producer.send_many(rows))


def left(server: FakeServer) -> list[bytes]:
    return sorted(row.value for (_, partition) in list(server.stored) for row in server.stored["t", partition])


def test_cancel_all_with_progress(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await fill(client, 20)
        server.job_step = 3
        reported: list[JobResult] = []
        result = await client.messages("t").cancel_all(progress=reported.append)
        assert result == (20, 20, 0) and left(server) == []
        assert reported[0] == (20, 0, 0) and reported[-1] == result and len(reported) > 3
        assert [one.done for one in reported] == sorted(one.done for one in reported)
        starts = server.of_type(Type.JOB_START)
        assert {frame[3] for frame in starts} == {0, 1, 2} and len({frame[4] for frame in starts}) == 1
        assert starts[0][5:] == ["cancel", {"from_ms": 0, "until_ms": 2**48 - 1, "key_prefix": None, "dry_run": False}]

    with_client(body, partitions=3)


def test_job_filters_select_messages(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        messages = client.messages("t")
        await fill(client, 9)
        await fill(client, 3, prefix="other")
        assert await messages.cancel_all(key_prefix="other", dry_run=True) == (3, 0, 0)
        assert len(left(server)) == 12
        assert await messages.cancel_all(key_prefix="other") == (3, 3, 0)
        bounds = {"since": NOW_MS + 2 * MINUTE_MS, "until": NOW_MS + 4 * MINUTE_MS}
        assert await messages.cancel_all(**bounds) == (2, 2, 0)
        assert await messages.move_all(since=NOW_MS + 8 * MINUTE_MS, shift="-5m") == (2, 2, 0)
        assert [(one.deliver_at_ms - NOW_MS) // MINUTE_MS async for one in messages.list()] == [1, 3, 4, 4, 5, 6, 7]
        assert await messages.move_all(to=NOW_MS + MINUTE_MS) == (7, 7, 0)
        assert {one.deliver_at_ms async for one in messages.list()} == {NOW_MS + MINUTE_MS}
        await messages.move_all(shift=timedelta(minutes=1))
        assert {one.deliver_at_ms async for one in messages.list()} == {NOW_MS + 2 * MINUTE_MS}

    with_client(body)


@pytest.mark.parametrize("problem", [CUT, NotLeader("moved")])
def test_job_is_started_once_despite_lost_replies(with_client: Any, problem: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        def start_and_cut(connection: Any, frame: Any) -> None:
            server.do_job_start(connection, frame)
            connection.cut()

        await fill(client, 10)
        server.job_step = 4
        server.script[Type.JOB_START] += [start_and_cut, problem]
        server.script[Type.JOB_STATUS] += [None, problem]
        assert await client.messages("t").cancel_all() == (10, 10, 0)
        assert len(server.jobs) == 1

    with_client(body)


def test_leaving_a_job_stops_it(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await fill(client, 30)
        server.job_step = 1
        with anyio.CancelScope() as scope:
            await client.messages("t").cancel_all(progress=lambda result: scope.cancel() if result.done > 2 else None)
        assert scope.cancelled_caught
        assert {job.record.state for job in server.jobs.values()} == {"stopped"} and len(server.jobs) == 2
        assert len(left(server)) > 20

        # A failed partition also ends the job in the other partitions.
        server.script[Type.JOB_STATUS] += [NotFound("no such job")]
        with pytest.raises(NotFound):
            await client.messages("t").cancel_all()
        assert "running" not in {job.record.state for job in server.jobs.values()}

    with_client(body, partitions=2)


def test_job_stopped_by_another_client(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await fill(client, 30)
        server.job_step = 1

        def stop(result: JobResult) -> None:
            if result.done == 2:
                for job in server.jobs.values():
                    job.left, job.record = [], job.record._replace(state="stopped")

        with pytest.raises(Conflict, match="was stopped") as caught:
            await client.messages("t").cancel_all(progress=stop)
        assert caught.value.details == {"matched": 30, "done": 2, "too_late": 0}
        with pytest.raises(UnknownTopic):
            await client.messages("nope").cancel_all()

    with_client(body)


def test_dead_letters_by_id(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        texts = await fill(client, 12)
        rows = {offset_text(row.id): row for partition in (0, 1) for row in server.stored["t", partition]}
        for one in texts[:8]:
            rows[one].state = "dead"
        rows[texts[8]].state = "leased"
        nobody, far = offset_text(offsets.pack(NOW_MS, 9, 9, 1)), offset_text(offsets.pack(NOW_MS, 9, 9, 99))
        server.page_rows = 2
        dead = client.dead("t", "g")
        named = [far, *texts[:5], texts[8], nobody, texts[0]]
        assert await dead.redrive_ids(named) == [
            (far, "not_found", None),
            *[(one, "redriven", None) for one in texts[:5]],
            (texts[8], "not_dead", "leased"),
            (nobody, "not_found", None),
        ]
        assert {rows[one].state for one in texts[:5]} == {"ready"}
        assert await dead.purge_ids(iter(texts[5:8])) == [(one, "purged", None) for one in texts[5:8]]
        assert len(left(server)) == 9
        asked = len(server.of_type(Type.DEAD_REDRIVE))
        assert await dead.redrive_ids([]) == []
        for wrong in (
            texts[0],
            ["no id"],
            [texts[0], 7],
            [offset_text(offsets.pack(n, 1, 0, 0)) for n in range(10_001)],
        ):
            with pytest.raises(InvalidRequest):
                await dead.redrive_ids(wrong)
        assert len(server.of_type(Type.DEAD_REDRIVE)) == asked, "no request is sent before all ids are checked"
        with pytest.raises(UnknownGroup):
            await client.dead("t", "other").redrive_ids(texts[:1])
        with pytest.raises(UnknownTopic):
            await client.dead("nope", "g").purge_ids(texts[:1])

    with_client(body)


def test_a_group_that_is_not_in_the_partition_has_no_such_dead_letter(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        texts = await fill(client, 2)
        answer = server.do_dead_purge

        def unknown(connection: Any, frame: Any) -> Any:
            raise UnknownGroup("not here")

        server.do_dead_purge = unknown
        assert await client.dead("t", "g").purge_ids(texts) == [(one, "not_found", None) for one in texts]
        server.do_dead_purge = answer

    with_client(body)


def test_dead_letter_filters_are_sent_only_if_given(with_client: Any) -> None:
    """Options that were not given are not sent, because older brokers do not know them."""

    async def body(server: FakeServer, client: Client) -> None:
        await fill(client, 4)
        for partition in (0, 1):
            for row in server.stored["t", partition]:
                row.state = "dead"
        dead = client.dead("t", "g")
        assert len([letter async for letter in dead.list(reason="nacked")]) == 4
        assert {len(frame) for frame in server.of_type(Type.DEAD_LIST)} == {9}
        assert [letter.key async for letter in dead.list(error="n", key_prefix="k2")] == [b"k2"]
        assert [letter.key async for letter in dead.list(error="yes", since=5_000_000_000_00)] == []
        assert server.of_type(Type.DEAD_LIST)[-1][9:] == [500_000_000_000, 2**48 - 1, "yes"]
        rising = [letter.offset async for letter in dead.list()]
        assert [letter.offset async for letter in dead.list(newest=True)] == rising[::-1]
        assert server.of_type(Type.DEAD_LIST)[-1][9:] == [0, 2**48 - 1, None, None, "newest"]
        assert await dead.redrive() == (4, 4, 0)
        assert not {"error", "key_prefix"} & set(server.of_type(Type.JOB_START)[-1][6])
        assert await dead.purge(error="n", key_prefix=b"k3", dry_run=True) == (0, 0, 0)
        assert server.of_type(Type.JOB_START)[-1][6].items() >= {"error": "n", "key_prefix": b"k3"}.items()
        for wrong in (
            {"error": ""},
            {"error": "x" * 1025},
            {"error": 7},
            {"key_prefix": 7},
            {"key_prefix": b"x" * 70_000},
        ):
            with pytest.raises(InvalidRequest):
                dead.list(**wrong)
            with pytest.raises(InvalidRequest):
                await dead.redrive(**wrong)

    with_client(body)


def test_lives_of_dead_and_waiting_messages_are_parsed() -> None:
    first, second = [1, "w", 10, 11, "nacked", "e1"], [2, "w", 12, 13, "lease_expired", None]
    third = [1, "w", 30, 31, "nacked", "e3"]
    row = Stored(b"v", None, None, offsets.pack(NOW_MS, 7, 0, 0)).dead_record(True)
    plain = DeadLetter.of("t", "g", row)
    assert (plain.life, plain.lives) == (1, [])
    lives = [[1, 2, 2, "lease_expired", None, 13, 20, "of a newer version"], [2, 0, 0, "expired", None, 21, 25]]
    found = DeadLetter.of("t", "g", row._replace(history=[first, second, third], lives=lives))
    assert found.life == 3 and [one.error for one in found.history] == ["e1", None, "e3"]
    assert [(life.life, life.reason, life.redriven_ms) for life in found.lives] == [
        (1, "lease_expired", 20),
        (2, "expired", 25),
    ]
    assert [[one.attempt for one in life.history] for life in found.lives] == [[1, 2], []]
    shown = dead_json(found, value=False)
    assert [(one["life"], one["attempt"]) for one in shown["history"]] == [(1, 1), (1, 2), (3, 1)]
    assert (shown["life"], [life["life"] for life in shown["lives"]]) == (3, [1, 2])
    assert shown["lives"][0] == {
        "life": 1,
        "attempts": 2,
        "reason": "lease_expired",
        "error": None,
        "dead_at": "1970-01-01T00:00:00.013Z",
        "redriven_at": "1970-01-01T00:00:00.020Z",
    }


def test_dead_letters(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        texts = await fill(client, 12)
        rows = [row for partition in (0, 1) for row in server.stored["t", partition]]
        rows.sort(key=lambda row: row.offset)
        for row in rows[:9]:
            row.state = "dead"
        for row in rows[:4]:
            row.dead_reason = "expired"
        server.page_rows = 2
        dead = client.dead("t", "g")
        found = [letter async for letter in dead.list()]
        assert [letter.id for letter in found] == texts[:9]
        first = found[0]
        assert (first.topic, first.group, first.attempts, first.reason, first.error) == ("t", "g", 1, "expired", "no")
        assert (first.value, first.key, first.headers, first.size) == (b"1", b"k1", {}, 1)
        assert first.history[0].outcome == "nacked" and first.dead_ms == NOW_MS + 5
        assert first.deliver_at_ms == NOW_MS + MINUTE_MS and first.offset == first.id
        assert [letter.value async for letter in dead.list(reason="nacked", limit=2, values=False)] == [None, None]
        assert await dead.counts() == {"expired": 4, "nacked": 5}

        assert await dead.redrive(reason="expired", rate=5, dry_run=True) == (4, 0, 0)
        assert {frame[6]["rate"] for frame in server.of_type(Type.JOB_START)} == {3}
        assert await dead.redrive(reason="expired") == (4, 4, 0)
        reported: list[JobResult] = []
        assert await dead.purge(progress=reported.append) == (5, 5, 0)
        assert reported and await dead.counts() == {} and len(left(server)) == 7
        for use in (lambda: dead.list(reason="old"), lambda: dead.list(limit=True)):
            with pytest.raises(InvalidRequest):
                use()
        for wrong in (dead.redrive(rate=0), dead.purge(reason="old")):
            with pytest.raises(InvalidRequest):
                await wrong
        other = client.dead("t", "other")
        with pytest.raises(UnknownGroup):
            await other.counts()
        with pytest.raises(UnknownGroup):
            await other.list().__anext__()
        with pytest.raises(InvalidName):
            client.dead("t", "no good")

    with_client(body, partitions=2)


def test_fetch(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        texts = await fill(client, 10)
        server.closed_ms = NOW_MS + 9 * MINUTE_MS
        server.page_rows = 3
        found = [message async for message in client.fetch("t", 0)]
        assert [message.offset for message in found] == texts[:8]  # only closed time is returned
        first = found[0]
        assert (first.id, first.topic, first.partition, first.value, first.key) == (texts[0], "t", 0, b"1", b"k1")
        assert (first.created_ms, first.deliver_at_ms, first.headers) == (NOW_MS, NOW_MS + MINUTE_MS, {})
        assert texts[0] in repr(first)
        assert [frame[7] for frame in server.of_type(Type.FETCH)] == [256 << 10, 512 << 10, 1 << 20]
        some = client.fetch("t", 0, texts[2], texts[5])
        assert [message.offset async for message in some] == texts[2:5]
        some = client.fetch("t", 0, NOW_MS + 2 * MINUTE_MS, NOW_MS + 4 * MINUTE_MS)
        assert [message.offset async for message in some] == texts[1:3]
        server.script[Type.FETCH] += [CUT, NotLeader("moved")]
        assert [message.offset async for message in client.fetch("t", 0, limit=4)] == texts[:4]
        assert server.of_type(Type.FETCH)[-1][6] == 1  # no more than requested
        assert [message async for message in client.fetch("t", 0, limit=0)] == []
        assert [message async for message in client.fetch("t", 0, NOW_MS + 60 * MINUTE_MS)] == []
        for wrong in (-1, 4096, True):
            with pytest.raises(InvalidRequest):
                client.fetch("t", wrong)
        with pytest.raises(UnknownPartition):
            await client.fetch("t", 1).__anext__()
        with pytest.raises(InvalidTime):
            client.fetch("t", 0, 5)

    with_client(body)


def test_fetch_rejects_invalid_replies(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        from sandq.model.batch import Column, encode

        base, after = offsets.pack(5, 5, 5, 0), offsets.pack(6, 0, 0, 0)
        batch = encode({Column.VALUE: [b"a", b"b", None]})
        answers = [
            (after, []),
            (None, [Piece(base, None, 7, [[0, 1], [2, 1]], batch), Piece(base, base * 3, 7, None, batch)]),
        ]
        for following, pieces in answers:
            server.script[Type.FETCH].append(
                lambda to, frame, following=following, pieces=pieces: to.send(
                    b"".join(encode_pieces(frame[1], (following, 9, offsets.FIRST, 1), pieces))
                )
            )
        found = [message async for message in client.fetch("t", 0)]
        assert [message.value for message in found] == [b"a", b"", b"a", b"b", b""]
        assert server.of_type(Type.FETCH)[1][4] == after
        for following, piece in (
            (offsets.FIRST, Piece(base, None, 7, None, batch)),
            (None, Piece(base, None, 7, [[2, 2]], batch)),
            (None, Piece(base, None, 7, None, b"no batch")),
            (None, Piece(base, base, 7, None, batch)),
        ):
            server.script[Type.FETCH].append(
                lambda to, frame, following=following, piece=piece: to.send(
                    b"".join(encode_pieces(frame[1], (following, 9, offsets.FIRST, 1), [piece]))
                )
            )
            with pytest.raises(ProtocolError):
                [message async for message in client.fetch("t", 0)]

    with_client(body)


def test_topics_and_groups_are_changed(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        record = await client.admin.update_topic("t", ttl=timedelta(minutes=5), backoff={"kind": "fixed"})
        assert record.settings == {"lease_ms": 30_000, "ttl": "5m", "backoff": {"kind": "fixed"}}
        server.script[Type.TOPIC_UPDATE] += [InvalidSetting("ordering: it cannot be changed")]
        with pytest.raises(InvalidSetting):
            await client.admin.update_topic("t", ordering="key")

        cursors = await client.admin.seek_group("t", "g", "2026-01-01T00:00:00Z")
        assert server.groups["g"]["to"] == 1_767_225_600_000
        assert list(cursors) == [0, 1] and offsets.deliver_ms(offsets.from_text(cursors[1])) == 1_767_225_600_000
        for to, wire in (("earliest", "earliest"), ("0" * 26, bytes(16))):
            await client.admin.seek_group("t", "g", to)
            assert server.groups["g"]["to"] == wire
        await client.admin.update_group("t", "g", max_attempts=3)
        assert (await client.admin.groups("t"))[0]["settings"] == {"max_attempts": 3}
        await client.admin.update_group("t", "g")
        assert server.groups["g"]["settings"] == {}
        server.groups["g"]["unfinished"] = 3
        with pytest.raises(Conflict, match="has yet to finish 3 messages") as refused:
            await client.admin.delete_group("t", "g")
        assert refused.value.details == {"group": "g", "unfinished": 3} and "g" in server.groups
        await client.admin.delete_group("t", "g", force=True)
        for use in (
            lambda: client.admin.delete_group("t", "g"),
            lambda: client.admin.update_group("t", "g"),
            lambda: client.admin.seek_group("t", "g", "latest"),
        ):
            with pytest.raises(UnknownGroup):
                await use()

    with_client(body, partitions=2)


def test_purging_a_topic(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await fill(client, 10)
        for row, state in zip(server.stored["t", 0], ("dead", "dead", "leased"), strict=False):
            row.state = state
        assert await client.admin.purge_topic("t") == (9, 9, 0)
        assert [row.state for row in server.stored["t", 0]] == ["leased"]

    with_client(body)


def test_forecasts_and_groups_are_summed_over_leaders(run: Any) -> None:
    async def main() -> None:
        async with two_nodes() as (one, two, client):
            two.now_ms += 5
            for partition in (0, 1, 1):
                await client.produce("t", b"v", partition=partition, deliver_at=NOW_MS + 10 * MINUTE_MS)
            await client.produce("t", b"v", partition=1, deliver_at=NOW_MS + 100 * MINUTE_MS)
            await client.produce("t", b"v", partition=0)
            forecast = await client.admin.forecast("t")
            first_ms = NOW_MS // MINUTE_MS * MINUTE_MS
            assert forecast == (NOW_MS + 5, [(first_ms, 1), (first_ms + 10 * MINUTE_MS, 3)], 1, [], True)
            hours = await client.admin.forecast("t", unit="hour", count=3)
            assert sum(count for _, count in hours.buckets) == 5 and hours.later == 0
            for wrong in ({"unit": "day"}, {"count": 0}, {"count": 3601}, {"count": True}):
                with pytest.raises(InvalidRequest):
                    await client.admin.forecast("t", **wrong)

            # A group counts as known if one leader knows it.
            del one.groups["g"]
            assert list(await client.admin.seek_group("t", "g", "latest")) == [0, 1]
            assert "to" in two.groups["g"]
            row = two.stored["t", 1][0]
            row.state = "dead"
            dead = client.dead("t", "g")
            assert [letter.id async for letter in dead.list()] == [offsets.to_text(row.id)]
            assert await dead.counts() == {"nacked": 1}
            one.script[Type.JOB_START] += [UnknownGroup("not here")]
            assert await dead.redrive() == (1, 1, 0)
            await client.admin.delete_group("t", "g")
            with pytest.raises(UnknownGroup):
                await client.admin.delete_group("t", "g")
            with pytest.raises(UnknownGroup):
                await dead.list().__anext__()
            for server in (one, two):
                server.script[Type.JOB_START] += [UnknownGroup("not here")]
            with pytest.raises(UnknownGroup):
                await dead.purge()

    run(main)


def test_answers_that_make_no_sense(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        for answer in ([[0]], [[0, 5]], [5], None):
            server.script[Type.GROUP_SEEK].append(
                lambda to, frame, answer=answer: to.send(encode_reply(frame[1], answer))
            )
            with pytest.raises(ProtocolError):
                await client.admin.seek_group("t", "g", "latest")

    with_client(body)


def test_starts_of_a_subscription(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        text = await client.produce("t", b"v")
        for start in ("latest", NOW_MS, "2026-01-01T00:00:00Z", text):
            async with client.subscribe("t", group="g", start=start):
                pass
        assert [request.start for request in server.subscribed] == [
            *("latest", NOW_MS, 1_767_225_600_000, offsets.from_text(text))
        ]

    with_client(body)


def test_points() -> None:
    assert start_of("earliest") == "earliest"
    with pytest.raises(InvalidTime, match="start: 'earliest', 'latest', an offset or an instant is expected"):
        start_of("yesterday")
    assert offset_of(None, None) is None
    assert offset_of(NOW_MS, None) == offsets.pack(NOW_MS, 0, 0, 0)
    assert offset_of("0" * 25 + "1", None) == (1).to_bytes(16, "big")
    with pytest.raises(InvalidRequest):
        offset_of("Z" * 26, None)
    assert [shift_ms(shift) for shift in (timedelta(seconds=-5), -5, -0.5, "-1m30s", "5s", 5, timedelta(1))] == [
        *(-5000, -5000, -500, -90_000, 5000, 5000, 86_400_000)
    ]
    for wrong in (True, "--5s", "-", None):
        with pytest.raises(InvalidTime):
            shift_ms(wrong)  # type: ignore[arg-type]
