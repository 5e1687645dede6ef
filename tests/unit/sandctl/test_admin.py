"""Tests of sandctl: topics, groups, the cluster, options, outputs and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from sandctl.main import main
from sandctl.options.topic_settings import shown
from sandq.model.errors import Unavailable, UnknownTopic
from sandq.model.settings import parse_settings
from sandq.protocol.frames import Type
from tests.support.client.fake_server import CUT, FakeServer

TENANTS = '{"acme": {"weight": 3}, "*": {"max_in_flight": "none"}}'


@pytest.mark.parametrize(
    ("kind", "options", "settings"),
    [
        ("priority", ("--ageing", "30s", "--ttl", "1h"), {"ageing": "30s", "ttl": "1h"}),
        ("priority", (), {}),
        ("fair", ("--tenants", TENANTS, "--ageing", "none"), {"tenants": TENANTS, "ageing": "none"}),
    ],
)
def test_topics_that_rank_their_messages(
    ctl: Any, server: FakeServer, kind: str, options: tuple[str, ...], settings: dict[str, str]
) -> None:
    assert ctl("topic", "create", "mails", "--kind", kind, *options).exit_code == 0
    (frame,) = server.of_type(Type.TOPIC_CREATE)
    assert frame[2:] == ["mails", kind, 1, None, settings]
    if settings:
        assert ctl("topic", "update", "mails", *options).exit_code == 0
        (frame,) = server.of_type(Type.TOPIC_UPDATE)
        assert settings in frame
    record = parse_settings(settings, kind).record()
    assert parse_settings(shown(record, kind), kind).record() == record, "a shown value can be used as an argument"
    assert shown(record, kind).keys().isdisjoint(("ordering", "rank"))
    if kind == "fair":
        assert shown(record, kind)["tenants"] == {
            "*": {"weight": 1, "max_in_flight": None},
            "acme": {"weight": 3, "max_in_flight": None},
        }


def test_produce_sets_priority_and_tenant(ctl: Any, server: FakeServer) -> None:
    server.add_topic("mails", kind="fair")
    assert ctl("produce", "mails", "a", "--priority", "-5", "--tenant", "acme").exit_code == 0
    line = b'{"text": "b", "tenant": "shop"}\n{"text": "c", "priority": 0}\n'
    assert ctl("produce", "mails", "--jsonl", "--priority", "2", "--tenant", "acme", input=line).exit_code == 0
    rows = [(row.value, row.priority, row.tenant) for row in server.stored["mails", 0]]
    assert sorted(rows) == [(b"a", -5, b"acme"), (b"b", 2, b"shop"), (b"c", 0, b"acme")]
    result = ctl("produce", "t", "a", "--priority", "1")
    assert result.exit_code == 2 and "priority: topic 't' is a timer topic" in result.stderr
    assert ctl("produce", "mails", "a", "--priority", "high").exit_code == 2
    result = ctl("produce", "mails", "a", "--tenant", "a/b")
    assert result.exit_code == 2 and "tenant: 'a/b' is not allowed" in result.stderr


def test_replicas_are_raised_of_topics_that_have_fewer(ctl: Any, server: FakeServer) -> None:
    server.topics.clear()
    server.add_topic("few")
    server.add_topic("many")
    server.topics["many"] = server.topics["many"]._replace(replicas=3)
    assert ctl("topic", "raise-replicas", "--all").output == "raised 1 topic to 3 replicas\n"
    (frame,) = server.of_type(Type.TOPIC_UPDATE)
    assert frame[2:] == ["few", {}, None, 3]
    named = ctl("topic", "raise-replicas", "many")
    assert (named.exit_code, named.output) == (0, "raised 0 topics to 3 replicas\n")
    assert "there is no topic 'none'" in ctl("topic", "raise-replicas", "none").stderr
    for wrong in ((), ("--all", "few")):
        assert ctl("topic", "raise-replicas", *wrong).exit_code == 2


def test_topics(ctl: Any, server: FakeServer) -> None:
    result = ctl(
        "topic", "create", "orders", "--partitions", "3", "--lease", "1m", "--max-attempts", "none",
        "--backoff", "fixed", "--backoff-first", "5s", "--retain",
    )  # fmt: skip
    assert (result.exit_code, result.output) == (0, "created topic orders (3 partitions, 1 replica)\n")
    (frame,) = server.of_type(Type.TOPIC_CREATE)
    backoff = {"kind": "fixed", "first": "5s"}
    settings = {"lease": "1m", "max_attempts": None, "backoff": backoff, "delete_on_ack": False}
    assert frame[2:] == ["orders", "timer", 3, None, settings]

    lines = ctl("topic", "list").output.splitlines()
    assert lines[0].split() == [
        "TOPIC",
        "KIND",
        "PARTITIONS",
        "REPLICAS",
        "LEASE",
        "MAX",
        "ATTEMPTS",
        "WITHOUT",
        "LEADER",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["orders", "t"]

    listed = json.loads(ctl("topic", "list", "-o", "json").output)
    assert [row["name"] for row in listed] == ["orders", "t"]
    by_line = ctl("-o", "jsonl", "topic", "list").output.splitlines()
    assert json.loads(by_line[0])["partition_count"] == 3

    shown = json.loads(ctl("topic", "show", "orders", "-o", "json").output)
    assert shown["partitions"][0] == {
        "partition": 0, "leader": "n1", "nodes": ["n1"], "moving": False, "group_number": 7, "messages": 3, "bytes": 30,
        "floor_ms": 1, "now_ms": 2, "ahead_ms": 0, "delayed": 1, "dead": 0,
    }  # fmt: skip
    assert "settings" in ctl("topic", "show", "orders").output

    assert ctl("topic", "delete", "orders").exit_code == 2
    assert "orders" in server.topics
    assert ctl("topic", "delete", "orders", "--yes").output == "deleted topic orders\n"
    assert "orders" not in server.topics
    server.topics.clear()
    result = ctl("topic", "list")
    assert (result.stdout, result.stderr) == ("", "none\n")


def test_groups_and_cluster(ctl: Any) -> None:
    lines = ctl("group", "list", "t").output.splitlines()
    assert lines[0].startswith("GROUP") and lines[1].split()[:3] == ["g", "0", "0" * 26]
    assert json.loads(ctl("group", "list", "t", "-o", "json").output)[0]["reason"] is None
    assert "cluster_uuid" in ctl("cluster", "info").output
    for command in (["cluster", "clock"], ["cluster", "clock", "show"]):
        assert "2023-11-14T22:13:20.000Z" in ctl(*command).output
    assert ctl("cluster", "clock", "accept").output == "the guarded clock is now 2023-11-14T22:13:20.000Z\n"
    assert json.loads(ctl("cluster", "clock", "accept", "-o", "json").output)["drift_ms"] == 5


def test_founding_the_cluster(ctl: Any, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ctl("cluster", "init", "--yes")
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"sandctl: this node belongs to cluster {server.cluster_uuid} already\n",
    )
    server.cluster_uuid = ""
    assert ctl("cluster", "init").exit_code == 2
    monkeypatch.setattr("sandctl.options.confirmation.can_ask", lambda: True)
    unsure = ctl("cluster", "init", input=b"n\n")
    assert unsure.exit_code == 1 and "n1 founds cluster 'sandq'; it has met n2. Continue?" in unsure.stderr
    assert server.cluster_uuid == ""
    founded = ctl("cluster", "init", input=b"y\n")
    assert founded.exit_code == 0 and "n1 has founded cluster founded-here" in founded.output
    server.cluster_uuid = ""
    found = json.loads(ctl("cluster", "init", "--yes", "-o", "json").output)
    assert found == {"node": "n1", "cluster": "sandq", "cluster_uuid": "founded-here"}


def test_a_request_that_fails_is_exit_code_1(ctl: Any, server: FakeServer) -> None:
    result = ctl("topic", "show", "nope")
    assert (result.exit_code, result.stderr) == (1, "sandctl: there is no topic 'nope'\n")
    result = ctl("topic", "create", "no good")
    assert result.exit_code == 2 and "'no good'" in result.stderr
    server.script[Type.TOPIC_CREATE] += [CUT]
    assert ctl("topic", "create", "x").exit_code == 1
    server.script[Type.METADATA] += [Unavailable("soon")]
    assert ctl("topic", "list").exit_code == 0


def test_wrong_usage_is_exit_code_2(ctl: Any) -> None:
    for args, words in (
        (["topc"], "Did you mean 'topic'"),
        (["topic", "lst"], "Did you mean 'list'"),
        (["topic", "create"], "Missing argument 'NAME'"),
        (["topic", "create", "x", "--partition", "3"], "--partitions"),
        (["topic", "create", "x", "--max-attempts", "many"], "neither a number nor none"),
        (["consume", "t"], "--group"),
        (["consume", "t", "-g", "g", "--max", "0"], "--max"),
        (["consume", "t", "-g", "g", "--max", "1", "--follow"], "only one of them"),
        (["-o", "xml", "topic", "list"], "'xml' is not one of"),
    ):
        result = ctl(*args)
        assert result.exit_code == 2 and words in result.stderr, args


def test_no_server_is_exit_code_3(ctl: Any) -> None:
    result = ctl("--server", "127.0.0.1:1", "topic", "list")
    assert (result.exit_code, result.stderr) == (3, "sandctl: cannot connect to 127.0.0.1:1: Connection refused\n")
    result = ctl("topic", "list", env={"SANDCTL_SERVERS": "127.0.0.1:1, 127.0.0.1:2"})
    assert result.exit_code == 3 and "no server can be reached" in result.stderr
    result = CliRunner(env={"SANDCTL_SERVERS": "nonsense:port"}).invoke(main, ["topic", "list"])
    assert result.exit_code == 2 and "HOST:PORT" in result.stderr


def test_servers_from_the_option_come_first(ctl: Any, server: FakeServer) -> None:
    unreachable = {"SANDCTL_SERVERS": "127.0.0.1:1"}
    assert ctl("topic", "list", "-s", "127.0.0.1:2", "-s", server.address, env=unreachable).exit_code == 0
    assert ctl("--server", server.address, "topic", "list", env=unreachable).exit_code == 0


def test_help_and_version() -> None:
    for args in (["--help"], ["-h"], ["topic", "create", "-h"], ["produce", "-h"], ["cluster", "clock", "-h"]):
        result = CliRunner().invoke(main, args)
        assert (result.exit_code, result.stderr) == (0, ""), args
        assert "Usage: sandctl" in result.output, args
    assert CliRunner().invoke(main, ["--version"]).output.startswith("sandctl 0")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from sandctl.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "names = ('anyio', 'msgpack', 'pydantic', 'rich', 'trio', 'sandq.client')\n"
        "print([name for name in names if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    code = "import sys; import sandq.client; print([n for n in ('pydantic', 'trio') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, UnknownTopic])
def test_error_of_command_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, ctl: Any, error: type[BaseException]
) -> None:
    def fail(*details: object) -> None:
        raise error("why")

    monkeypatch.setattr("sandctl.commands.cluster.run", fail)
    result = ctl("cluster", "info")
    assert result.exit_code == (130 if error is KeyboardInterrupt else 1)


def test_tenants_of_a_fair_topic(ctl: Any, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add_topic("mails", kind="fair", tenants=[["*", 1, 100], ["acme", 3, None, 200_000, 7]])
    waiting = {"tenant": "acme", "ready": 2, "in_flight": 1, "max_in_flight": None, "weight": 3}
    waiting |= {"rate": "5/s", "burst": 7, "free_ms": 1_900_000_000_000}
    server.groups["g"] = {}
    rows = server.do_group_list
    monkeypatch.setattr(
        server, "do_group_list", lambda to, frame: ([row | {"tenants": [waiting]} for row in rows(to, frame)[0]],)
    )
    assert json.loads(ctl("tenant", "list", "mails", "-o", "json").output) == {
        "topic": "mails",
        "patterns": [
            {"pattern": "*", "weight": 1, "max_in_flight": 100, "rate": None, "burst": None},
            {"pattern": "acme", "weight": 3, "max_in_flight": None, "rate": "5/s", "burst": 7},
        ],
        "tenants": [{"group": "g", "partition": 0, **waiting}],
    }
    shown = ctl("tenant", "list", "mails").output
    assert "max_in_flight" in shown and "acme" in shown
    assert json.loads(ctl("group", "show", "mails", "g", "-o", "json").output)["partitions"][0]["tenants"] == [waiting]


def test_rate_of_tenant_is_changed(ctl: Any, server: FakeServer) -> None:
    for options, row in (
        (("--rate", "10/m"), ["acme", 3, None, 6_000_000, 1]),
        (("--burst", "9"), ["acme", 3, None, 200_000, 9]),
        (("--rate", "100/s", "--burst", "3"), ["acme", 3, None, 10_000, 3]),
        (("--rate", "none"), ["acme", 3, None]),
        (("--weight", "2"), ["acme", 2, None, 200_000, 7]),
    ):
        server.add_topic("mails", kind="fair", tenants=[["acme", 3, None, 200_000, 7]])
        assert ctl("tenant", "set", "mails", "acme", *options).exit_code == 0
        assert server.topics["mails"].settings["tenants"] == [row]
    result = ctl("tenant", "set", "mails", "acme", "--rate", "fast")
    assert result.exit_code == 2 and "a rate is expected" in result.stderr


def test_tenant_set_changes_one_pattern(ctl: Any, server: FakeServer) -> None:
    for options, tenants in (
        (("acme", "--max-in-flight", "5"), {"*": (1, 100), "acme": (3, 5)}),
        (("*", "--max-in-flight", "none"), {"*": (1, None), "acme": (3, None)}),
        (("shop.*", "--weight", "7"), {"*": (1, 100), "acme": (3, None), "shop.*": (7, None)}),
        (("acme", "--remove"), {"*": (1, 100)}),
    ):
        server.add_topic("mails", kind="fair", tenants=[["*", 1, 100], ["acme", 3, None]])
        assert ctl("tenant", "set", "mails", *options).exit_code == 0
        rows = server.topics["mails"].settings["tenants"]
        assert {pattern: (weight, most) for pattern, weight, most in rows} == tenants
    for wrong in ((), ("--remove", "--weight", "2"), ("--max-in-flight", "few"), ("--weight", "x")):
        assert ctl("tenant", "set", "mails", "acme", *wrong).exit_code == 2
    result = ctl("tenant", "set", "mails", "other", "--remove")
    assert result.exit_code == 1 and "has no entry for 'other'" in result.stderr
    result = ctl("tenant", "list", "t")
    assert result.exit_code == 2 and "topic 't' is a timer topic" in result.stderr
