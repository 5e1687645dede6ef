"""Every command line of docs/sandctl.md and docs/configuration.md is run by a shell against a real node.

The tests create the objects that a command needs (topics, files, a message with its id). Commands with a prompt get
--yes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandq
from sandq.client.webhooks import new_push_secret
from sandq.errors import DuplicateKey
from tests.support.documents import document
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell
from tests.support.waiting import PATIENCE_S

TOKEN = re.compile(r"(?<=--lease-token )[0-9.]+")
ID = re.compile(r"\b01HN7K2B6R00000000\d{8}\b")
ASKS = re.compile(
    r"^sandctl (backup delete|topic (delete|purge)|group (delete|seek)|dead purge(?!.* --id)|"
    r"message (cancel|move) .*(--all|--since|--key-prefix))"
)
BACKUP = re.compile(r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b")
REFUSED = {
    "sandctl cluster finalize": "cannot be raised",
    "sandctl cluster init": "belongs to cluster",
    "sandctl cluster drain": "no node 'node2' is registered",
    "sandctl cluster remove": "no node 'node2' is registered",
    "sandctl cluster transfer": "node2 does not hold partition 0",
    "sandctl cluster rebuild": "node2 does not hold partition 0",
    "sandctl partition skip": "is not shut",
    "sandctl topic raise-replicas": "3 replicas, and 1 nodes are registered",
}
"""Errors of commands that a single node cannot execute."""
REFUSED_AS_INVALID = ("sandctl cluster transfer", "sandctl cluster rebuild", "sandctl topic raise-replicas")


def lines(page: str, program: str) -> list[str]:
    return [line.strip() for line in document(page).splitlines() if re.match(rf"    (SANDQ_\S+ )*{program} ", line)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("node"), SANDQ_LISTEN__HTTP="none")
    process.start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def shell(node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    directory = tmp_path_factory.mktemp("shell")
    (directory / "photo.jpg").write_bytes(bytes(range(256)))
    (directory / "secret").write_text(sandq.new_push_secret())
    (directory / "backup.key").write_text("ab" * 32)
    (directory / "backup.key").chmod(0o600)
    (directory / "words.txt").write_text("one\ntwo\n")
    (directory / "schedules.jsonl").write_text('{"name": "daily", "text": "", "every": "1h"}\n')
    with sandq.sync.connect(node.address, timeout=PATIENCE_S) as client:
        (directory / "admin.token").write_text(client.admin.create_token("admin", ["admin"]).text)
    return Shell(directory, SANDCTL_SERVERS=node.address, XDG_CONFIG_HOME=str(directory))


@pytest.fixture(scope="module")
def client(node: NodeProcess) -> Iterator[sandq.sync.Client]:
    with sandq.sync.connect(node.address, timeout=PATIENCE_S) as client:
        yield client


def prepare_backup(client: sandq.sync.Client, shell: Shell, line: str) -> str:
    """Make a backup, and delete topics of earlier restores."""
    if line.startswith(("sandctl backup create", "sandctl backup schedule")):
        return line
    there = {record.name for record in client.admin.list_topics()}
    for name in sorted(there):
        if name.startswith("restored-") or name == "orders-before":
            client.admin.delete_topic(name)
    made = json.loads(shell("sandctl backup create backups --topic orders -o json"))
    return BACKUP.sub(made["backup_id"], line)


KINDS = {"config": "compacted", "mails": "fair"}


def prepare_identities(client: sandq.sync.Client, line: str) -> None:
    """Create the token billing, and the role and the identity of the line."""
    there = {one.principal for one in client.admin.identities()}
    if line.startswith("sandctl role delete"):
        if "cert:till-7" in there:
            client.admin.delete_identity("cert:till-7")
        client.admin.put_role("payments", ["reader"])
    elif " create " in line:
        for principal in {"token:billing", "cert:till-7"} & there:
            client.admin.delete_identity(principal)
        client.admin.put_role("payments", ["reader"])
    else:
        client.admin.put_role("payments", ["reader"])
        if "token:billing" not in there:
            client.admin.create_token("billing", ["reader"])
        if "cert:till-7" not in there:
            client.admin.create_identity("cert:till-7", ["payments", "read:reports.*"])


def prepare_limits(client: sandq.sync.Client, line: str) -> None:
    """Remove the limits of the group billing, which an earlier line may have set. Set the named limit of the line."""
    client.admin.limit_group("orders", "billing")
    if " llm" in line:
        client.admin.set_limit("llm", max_in_flight=50)
        client.admin.resume_limit("llm")


def prepare(client: sandq.sync.Client, line: str) -> str:
    """Create the objects that the line needs. Return the line with ids that exist."""
    if line.split()[1] in ("token", "identity", "role", "login", "logout", "whoami"):
        prepare_identities(client, line)
        return line
    there = {record.name for record in client.admin.list_topics()}
    create = re.match(r"sandctl topic create (\S+)", line)
    if create is not None:
        if create[1] in there:
            client.admin.delete_topic(create[1])
        return line
    for name in {"archive", "orders", "log", "config", "mails"} - there:
        if name in KINDS:
            client.admin.create_topic(name, kind=KINDS[name])
        else:
            client.admin.create_topic(name, **({"delete_on_ack": False} if name == "log" else {}))
    for group in ("billing", "copy"):
        client.leases("orders", group).take()
        client.admin.resume_group("orders", group)  # an earlier line may have paused the group
    prepare_limits(client, line)
    if line.startswith("sandctl doctor"):
        client.admin.remove_push("orders", "shop")  # its receiver does not exist
    if " mails sender" in line:
        client.leases("mails", "sender").take()
    if "calls dialers" in line:
        if "calls" not in there:
            client.admin.create_topic("calls", max_in_flight_per_key=3)
        client.leases("calls", "dialers").take()
    if "--unique-key call-ada" in line:
        try:
            client.produce("orders", b"x", unique_key="call-ada", on_conflict="replace", delay="30m")
        except DuplicateKey:
            # An earlier line has moved the message forward, and a group has leased it.
            client.admin.delete_topic("orders")
            return prepare(client, line)
    if "--unique-key invoice-1 " in line and not line.startswith("sandctl produce"):
        client.produce("orders", b"x", key="customer-7", unique_key="invoice-1", on_conflict="ignore", delay="1h")
    if "--max 5" in line or "--follow" in line:
        for _ in range(5):
            client.produce("orders", b"x")
    if line.startswith("sandctl schedule") and " orders" in line:
        schedules = client.schedules("orders")
        if line.startswith("sandctl schedule create"):
            for schedule in list(schedules.list()):
                schedules.delete(schedule.name)
        else:
            schedules.create_many({"name": name, "value": b"", "every": "1h"} for name in ("daily", "poll", "trial"))
    if line.startswith("sandctl group push") and "--url" not in line:
        client.admin.set_push("orders", "shop", "https://shop.example/hooks/orders", secrets=new_push_secret())
    if line.startswith("sandctl kv"):
        keys = client.kv("config")
        if "--absent" in line:
            keys.delete("owner")
        else:
            for key in ("app/port", "logo", "theme"):
                keys.put(key, b"x")
        return ID.sub(lambda match: keys.put("theme", b"x"), line)
    if line.startswith("sandctl dead") and "--id" in line:
        return ID.sub(lambda match: dead_letter(client), line)
    if line.startswith("sandctl lease") and (ID.search(line) or "--lease-token" in line):
        held = leased(client)
        return TOKEN.sub(held.lease_token, ID.sub(held.id, line))
    topic = "mails" if " mails " in line else "orders"
    if line.endswith("acme --remove"):
        client.admin.update_topic(topic, tenants={"acme": {"weight": 3}})
    return ID.sub(lambda match: client.produce(topic, b"x", delay="30m"), line)


def leased(client: sandq.sync.Client) -> sandq.LeasedMessage:
    """Return a message of the topic orders that the group billing has leased."""
    client.produce("orders", b"x")
    (held,) = client.leases("orders", "billing").take(wait="30s")
    return held


def dead_letter(client: sandq.sync.Client) -> str:
    """Let a message of orders die in the group billing; return its id."""
    client.admin.update_group("orders", "billing", max_attempts=1)
    message_id, leases = client.produce("orders", b"x"), client.leases("orders", "billing")
    while True:
        held = leases.take(100, wait="30s")
        assert held, "no consumer received the message"
        leases.nack([(message.lease_token, message.offset) for message in held], error="no stock")
        if message_id in {message.id for message in held}:
            client.admin.update_group("orders", "billing")
            return message_id


PAGE = lines("sandctl", "sandctl")


def test_page_has_commands() -> None:
    assert len(PAGE) > 50


@pytest.mark.parametrize("line", PAGE)
def test_command_of_sandctl_page_succeeds(shell: Shell, client: sandq.sync.Client, line: str) -> None:
    if line.startswith("sandctl context"):
        (shell.directory / "sandq" / "contexts.json").unlink(missing_ok=True)
        for name in () if " add " in line else ("local", "prod"):
            shell(f"sandctl context add {name} -s 127.0.0.1:7170 --use")
        shell(line)
        return
    ready = prepare(client, line)
    if line.startswith("sandctl backup"):
        ready = prepare_backup(client, shell, line)
    if "--follow" in line:
        code, _, errors = shell.interrupt(ready, after=b"x")
        assert code == 130 and b"Traceback" not in errors
        return
    if line.startswith("sandctl kv watch") and "--max" not in line:
        code, _, errors = shell.interrupt(f"{ready.partition('#')[0]} --start earliest", after=b"theme")
        assert (code, errors) == (0, b"")
        return
    for start, words in REFUSED.items():
        if line.startswith(start):
            refused = shell.run(ready)
            code = 2 if start in REFUSED_AS_INVALID else 1
            assert refused.code == code and words in refused.err, refused
            return
    if ASKS.match(line) and "--yes" not in line and "--dry-run" not in line:
        refused = shell.run(ready)
        assert refused.code == 2 and "--yes" in refused.err, "without a terminal, the command cannot prompt"
        ready += " --yes"
    shell(ready)


@pytest.fixture(scope="module")
def left_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of a stopped node. In that of a running node, files could vanish during a copy."""
    process = NodeProcess(tmp_path_factory.mktemp("stopped"))
    try:
        process.start()
        with sandq.sync.connect(process.address, timeout=PATIENCE_S) as client:
            client.admin.create_topic("orders", partitions=3)
            for number in range(150):
                client.produce("orders", b"x", partition=number % 3)
        assert process.stop() == 0
    finally:
        process.close()
    return process.data_dir


@pytest.mark.parametrize("line", lines("configuration", "sandq"))
def test_command_of_configuration_page_succeeds(left_data: Path, tmp_path: Path, line: str) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(left_data, tmp_path / "sandq-data")
    names = ("CLIENT", "HTTP", "PEER", "GOSSIP")
    ports = {f"SANDQ_LISTEN__{name}": f"127.0.0.1:{free_port()}" for name in names}
    out = Shell(tmp_path, **(ports if "doctor" in line else {}))(line)
    assert out, line
