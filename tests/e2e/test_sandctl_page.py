"""The commands of docs/sandctl.md work against a real node. Each command is a process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Ctl, Done
from tests.support.waiting import PATIENCE_S, until_answer


@pytest.fixture(scope="module")
def ctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctl]:
    """Start the node that all tests share. Each test uses its own topics."""
    node = NodeProcess(tmp_path_factory.mktemp("node"))
    node.start()
    yield Ctl(node)
    node.close()


def in_client(ctl: Ctl, work: Any) -> Any:
    """Use the client for a step that the command line cannot do."""

    async def run() -> Any:
        async with sandq.connect(ctl.node.address, timeout=PATIENCE_S) as client:
            return await work(client)

    return trio.run(run)


def test_topics(ctl: Ctl) -> None:
    ctl("topic create orders --partitions 4 --lease 1m --max-attempts 5")
    ctl("topic create log --retain --retain-for 30d --retain-bytes 10GiB")
    ctl("topic create steps --ordering key --ttl 1d --dedup-window 1h")
    assert {"log", "orders", "steps"} <= {row["name"] for row in ctl.json("topic list")}
    shown = ctl.json("topic show orders")
    assert (shown["settings"]["lease"], shown["settings"]["max_attempts"]) == ("1m", 5)
    assert "already" in ctl("topic create orders", code=1).err
    ctl("topic update orders --ttl 1h --backoff-cap 1m")
    settings = ctl.json("topic show orders")["settings"]
    assert (settings["ttl"], settings["backoff"]["cap"], settings["lease"]) == ("1h", "1m", "1m")
    assert "ordering" in ctl("topic update orders --ordering key", code=2).err
    assert "delete_on_ack" in ctl("topic update log --delete-on-ack", code=2).err
    ctl("topic update log --delete-on-ack --retain-for none --retain-bytes none")
    assert ctl.json("topic show log")["settings"]["delete_on_ack"] is True
    assert ctl.json("topic show steps")["settings"]["ordering"] == "key"
    assert "--yes" in ctl("topic delete log", code=2).err
    ctl("topic delete log --yes")
    assert "log" in ctl("topic show log", code=1).err


def test_forecast_and_purge(ctl: Ctl) -> None:
    ctl("topic create due --partitions 2")
    ctl("produce due --lines --in 90m", stdin="a\nb\nc\n")
    ctl("produce due --lines --in 100h", stdin="d\ne\n")
    forecast = ctl("topic forecast due --unit hour --count 48").out.splitlines()
    (hour,) = [line for line in forecast if "█" in line]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:00:00\.000Z +3  █+", hour), forecast
    assert re.fullmatch(r"later +2", forecast[-1])
    told = ctl.json("topic forecast due --count 60")
    assert told["later"] == 5
    assert "--yes" in ctl("topic purge due --dead", code=2).err
    assert ctl("topic purge due --dead --yes").out == "cancelled 5 messages of due, purged 0 dead letters\n"
    assert ctl.json("topic forecast due")["later"] == 0


def test_unique_keys(ctl: Ctl) -> None:
    ctl("topic create calls")

    def produce(value: str, *more: str, code: int = 0) -> Done:
        return ctl("produce calls", value, "--unique-key", "call-ada", "--at", "+1d", *more, code=code)

    first = produce("call Ada").out.strip()
    assert first in produce("call Ada", code=1).err
    assert produce("call Ada", "--on-conflict", "ignore").out.strip() == first
    second = produce("call Ada", "--on-conflict", "replace").out.strip()
    got = ctl.json("message get calls --unique-key call-ada")
    assert (got["id"], got["state"], got["text"]) == (second, "delayed", "call Ada")
    assert [row["id"] for row in ctl("message list calls -o jsonl").rows] == [second]
    assert ctl("message cancel calls --unique-key call-ada").out == "cancelled unique key 'call-ada'\n"
    assert ctl("message cancel calls --unique-key call-ada").out == "cancelled unique key 'call-ada'\n"
    assert "not found" in ctl("message cancel calls --unique-key nobody", code=1).err


def test_looking_at_messages(ctl: Ctl) -> None:
    ctl("topic create looked --partitions 3")
    customers = {"customer-1": "+10m", "customer-2": "+20m", "customer-7": "+30m", "customer-70": "+3h"}
    for customer, at in customers.items():
        ctl("produce looked", customer, "--key", customer, "--at", at, "--header", "source=shop")
    ready = ctl("produce looked now").out.strip()

    def texts(*more: str) -> list[str]:
        return [row["text"] for row in ctl("message list looked --values -o jsonl", *more).rows]

    assert texts() == ["now", "customer-1", "customer-2", "customer-7", "customer-70"]
    assert texts("--state", "delayed", "--until", "+1h") == ["customer-1", "customer-2", "customer-7"]
    assert texts("--since", "now", "--key-prefix", "customer-7") == ["customer-7", "customer-70"]
    assert texts("--state", "ready") == ["now"]
    limited = ctl("message list looked --limit 2")
    assert (len(limited.out.splitlines()), "only the first 2" in limited.err) == (3, True)
    got = ctl.json("message get looked", ready)
    assert (got["id"], got["state"], got["text"]) == (ready, "ready", "now")
    assert ctl("message get looked 01HN7K2B6R0000000001000000", code=1).err.startswith("sandctl: ")
    assert "ID" in ctl("message get looked", code=2).err
    # The output of `message list` is valid input.
    saved = ctl("message list looked --values --limit all -o jsonl").out
    ctl("topic create copied")
    ctl("produce copied --jsonl", stdin=saved)
    found = ctl("message list copied --values -o jsonl").rows
    assert [(row["text"], row.get("key"), row.get("headers")) for row in found] == [
        (row["text"], row.get("key"), row.get("headers")) for row in map(json.loads, saved.splitlines())
    ]


def test_changing_messages(ctl: Ctl) -> None:
    ctl("topic create changed --partitions 2")
    ids = ctl("produce changed --lines --key customer-7 --at +30m", stdin="a\nb\nc\n").out.split()
    ids += ctl("produce changed --lines --key customer-8 --at +40m", stdin="d\ne\n").out.split()
    moved = ctl("message move changed", ids[0], "--at", "2030-01-31T08:00:00Z").out
    assert re.fullmatch(rf"moved {ids[0]} to 2030-01-31T08:00:00\.000Z \(\w{{26}}\)\n", moved)
    assert ctl("message cancel changed", ids[1], ids[2]).out == f"cancelled {ids[1]}\ncancelled {ids[2]}\n"
    half = ctl("message cancel changed", ids[1], "7ZZZZZZZZZ0000000001000000", code=1)
    assert (half.out, "not found" in half.err) == (f"cancelled {ids[1]}\n", True)
    assert ctl("message move changed --since now --until +1d --shift +1h --dry-run").out.startswith("2 messages")
    assert "--yes" in ctl("message move changed --all --shift -30m", code=2).err
    shifted = ctl.json("message move changed --since now --until +1d --shift +1h --yes")
    assert shifted == {"matched": 2, "done": 2, "too_late": 0}
    assert ctl("message cancel changed --key-prefix customer-8 --dry-run").out.startswith("2 messages")
    assert ctl("message cancel changed --key-prefix customer-8 --yes").out.startswith("cancelled 2 of 2 messages")
    assert ctl("message cancel changed --all --yes").out == "cancelled 1 of 1 message of changed\n"
    assert "not several" in ctl("message cancel changed --all --since now", code=2).err
    assert ctl("message list changed").err == "none\n"


def test_commands_follow_the_life_of_a_message(ctl: Ctl) -> None:
    ctl("topic create lives --max-attempts 3")
    message_id = ctl("produce lives x --unique-key call-ada --at +1h").out.strip()
    assert "so no consumer receives it" in ctl("message why lives", message_id).out
    ctl("message move lives --unique-key call-ada --in 0s")

    async def fail(client: sandq.Client) -> None:
        async with client.subscribe("lives", group="billing") as subscription:
            message = await anext(subscription)
            await message.nack(delay="1h", error="no stock")

    in_client(ctl, fail)
    told = ctl("message why lives --unique-key call-ada").out
    assert told.startswith(f"message {message_id} of topic lives: waiting\n")
    for words in ("unique key call-ada", "1 byte", "moved      once", "group billing: waiting", "nacked after",
                  "no stock", "after attempt 1", "none connected", "it waits for its next attempt"):  # fmt: skip
        assert words in told, told
    record = ctl.json("message why lives --unique-key call-ada")
    assert record["groups"][0]["history"][0]["error"] == "no stock"
    ctl("message move lives --in 0s", message_id)

    async def hold(client: sandq.Client) -> None:
        (message,) = await client.leases("lives", "billing").take(1, wait="30s")
        assert (message.id, message.attempt) == (message_id, 2)

    in_client(ctl, hold)
    late = ctl("message cancel lives", message_id, code=1)
    assert late.err == f"{message_id}: too late, it is leased\n"


def test_consuming(ctl: Ctl) -> None:
    ctl("topic create fed")
    ctl("produce fed --lines", stdin="a\nb\nc\n")
    assert ctl("consume fed --group look --no-ack").out == "a\nb\nc\n"
    copied = ctl("consume fed --group copy -o jsonl").out
    assert [json.loads(line)["text"] for line in copied.splitlines()] == ["a", "b", "c"]
    ctl("topic create archive")
    ctl("produce archive --jsonl", stdin=copied)
    assert ctl("consume archive --group g --max 3").out == "a\nb\nc\n"
    assert ctl("consume fed --group look").out == "a\nb\nc\n", "messages that were only read were given back"
    assert ctl("consume fed --group new --start latest").out == ""


def test_groups(ctl: Ctl) -> None:
    ctl("topic create grouped --partitions 2 --retention 1h")
    ctl("produce grouped --lines", stdin="a\nb\nc\n")
    assert sorted(ctl("consume grouped --group billing").out.split()) == ["a", "b", "c"]
    assert len(ctl("group list grouped -o jsonl").rows) == 2
    shown = ctl.json("group show grouped billing")
    assert (shown["ready"], shown["leased"], shown["consumers"], shown["settings"]) == (0, 0, 0, None)
    assert "--yes" in ctl("group seek grouped billing --to earliest", code=2).err
    ctl("group seek grouped billing --to earliest --yes")
    assert sorted(ctl("consume grouped --group billing").out.split()) == ["a", "b", "c"]
    ctl("group seek grouped billing --to -2h --yes")
    assert ctl.json("group show grouped billing")["ready"] == 3
    ctl("group seek grouped billing --to latest --yes")
    assert ctl("consume grouped --group billing").out == ""
    ctl("group update grouped billing --max-attempts 3 --backoff fixed --backoff-first 5s")
    settings = ctl.json("group show grouped billing")["settings"]
    assert (settings["max_attempts"], settings["backoff"]["kind"]) == (3, "fixed")
    ctl("group update grouped billing --reset")
    assert ctl.json("group show grouped billing")["settings"] is None
    assert "billing" not in ctl("group delete grouped nobody --yes", code=1).out
    ctl("group delete grouped billing --yes")
    assert "no group 'billing'" in ctl("group show grouped billing", code=1).err
    assert ctl("group list grouped").err == "none\n"


def test_dead_letters(ctl: Ctl, tmp_path: Path) -> None:
    ctl("topic create failed --partitions 2 --max-attempts 1")

    async def fail(client: sandq.Client) -> None:
        async with client.subscribe("failed", group="billing", credit=100) as subscription:
            for number in range(6):
                await client.produce("failed", b"%d" % number, key=f"k{number}")
            for number in range(6):
                message = await anext(subscription)
                await message.nack(error=f"no {number}")
        await client.produce("failed", b"late", ttl="1ms")
        await until_answer(client.dead("failed", "billing").counts, lambda counts: counts.get("expired") == 1)

    in_client(ctl, fail)
    listed = ctl("dead list failed --group billing")
    assert len(listed.out.splitlines()) == 8, listed.out
    assert listed.err == "7 dead in group billing: 1 expired, 6 nacked\n"
    (late,) = ctl("dead list failed -g billing --reason expired --values -o jsonl").rows
    assert (late["text"], late["reason"], late["attempts"]) == ("late", "expired", 0)
    saved = ctl("dead list failed -g billing --values --limit all -o jsonl").out
    assert ctl("dead redrive failed --group billing --reason nacked --since -1d --dry-run").out.startswith("6 ")
    redriven = ctl("dead redrive failed --group billing --reason nacked --since -1d --rate 50").out
    assert redriven == "redriven 6 of 6 dead letters\n"
    assert sorted(ctl("consume failed --group billing").out.split()) == [str(number) for number in range(6)]
    assert ctl("dead purge failed --group billing --until -7d --yes").out == "purged 0 of 0 dead letters\n"
    assert "--yes" in ctl("dead purge failed --group billing --all", code=2).err
    assert ctl("dead purge failed --group billing --reason expired --yes").out == "purged 1 of 1 dead letter\n"
    assert ctl("dead list failed --group billing").err == "none\n"
    ctl("topic create saved")
    ctl("produce saved --jsonl", stdin=saved)
    assert len(ctl("message list saved -o jsonl").rows) == 7
    assert "nobody" in ctl("dead list failed --group nobody", code=1).err


def test_cluster_commands_work_and_missing_cluster_is_exit_code_3(ctl: Ctl) -> None:
    assert "node1" in ctl("cluster info").out
    assert abs(json.loads(ctl("-o json cluster clock").out)["drift_ms"]) < 500
    assert ctl("--server 127.0.0.1:1 topic list", code=3).err.startswith("sandctl: ")


def test_nodes_and_partitions(ctl: Ctl) -> None:
    ctl("topic create parted --partitions 3")
    ctl("produce parted --lines --at +1h", stdin="a\nb\n")
    (node,) = ctl.json("cluster nodes")
    assert node["node"] == "node1" and node["client"] == ctl.node.address and node["leads"] >= 3
    rows = ctl.json("cluster partitions --topic parted")
    assert [(row["topic"], row["partition"], row["leader"]) for row in rows] == [
        ("parted", number, "node1") for number in range(3)
    ]
    assert sum(row["delayed"] for row in rows) == 2
    assert "only the first 2" in ctl("cluster partitions --limit 2").err
    assert "no topic 'absent'" in ctl("cluster partitions --topic absent", code=1).err


def test_many_at_a_rate(ctl: Ctl) -> None:
    ctl("topic create paced")
    assert len(ctl("produce paced tick --count 500").out.split()) == 500
    began = time.monotonic()
    ctl("produce paced --lines --rate 50", stdin="x\n" * 40)
    assert time.monotonic() - began >= 0.75
    assert len(ctl("consume paced --group g").out.split()) == 540


def test_measuring(ctl: Ctl) -> None:
    before = {row["name"] for row in ctl.json("topic list")}
    found = ctl.json("bench produce --messages 3000 --batch 10")
    assert found["messages"] == 3000 and found["rate"] > 0 and found["latency"]["p99_ms"] > 0
    found = ctl.json("bench consume --messages 3000")
    assert found["messages"] == 3000 and found["latency"]["max_ms"] > 0
    found = ctl.json("bench lateness --messages 200 --rate 400")
    assert (found["messages"], found["early"]) == (200, 0) and found["lateness"]["least_ms"] >= 0
    assert "early" in ctl("bench lateness --messages 20 --rate 400").out
    assert {row["name"] for row in ctl.json("topic list")} == before, "the command deletes the topic that it creates"
    ctl("topic create benched")
    ctl("bench lateness --messages 20 --rate 400 --topic benched")
    assert ctl("group list benched").err == "none\n", "the command deletes its group"
    ctl("produce benched x")
    assert "holds 1 message, " in ctl("bench consume --topic benched", code=1).err


def test_consume_without_ack_shows_ready_messages(ctl: Ctl) -> None:
    """`consume --no-ack` uses no attempts, and does not wait for delayed messages."""
    ctl("topic create seen --max-attempts 2")
    ctl("produce seen --lines", stdin="a\nb\n")
    ctl("produce seen later --in 1h")
    for _ in range(3):
        assert ctl("consume seen --group g --no-ack").out == "a\nb\n"
    assert [row["attempt"] for row in ctl("consume seen --group g -o jsonl").rows] == [1, 1]
    assert ctl("consume seen --group g").out == ""
