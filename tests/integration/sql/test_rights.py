"""A secured node serves SQL: a password is a token, connections use TLS, and the node checks the rights."""

from __future__ import annotations

import os
import ssl
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pymysql
import pytest

from sandq.sql.schema import TABLES
from sandq.sql.wire import packets
from sandq.sync import connect
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

HIDDEN = "what nobody else may read"
"""Text in each value, key, error and schedule of the topics that are not `ours`."""


class Secured:
    """A node with topic `ours`, and with other topics. Other tokens may read nothing, one group, or everything of
    these."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory / "ca")
        pair = authority.node("node1", "127.0.0.1")
        self.ca = authority.ca
        self.port = free_port()
        http_port = free_port()
        self.node = NodeProcess(
            directory,
            SANDQ_LISTEN__HTTP=f"127.0.0.1:{http_port}",
            SANDQ_LISTEN__SQL=f"127.0.0.1:{self.port}",
            SANDQ_SQL__HTTP="true",
            SANDQ_SECURITY__AUTHENTICATION="require",
            SANDQ_TLS__CERT_FILE=str(pair.certificate),
            SANDQ_TLS__KEY_FILE=str(pair.key),
            SANDQ_TLS__CA_FILE=str(authority.ca),
            SANDQ_TLS__PEER="off",
            SANDQ_TLS__CLIENT_CERTIFICATES="accept",
        )
        self.node.start(wait=False)
        self.tokens: dict[str, str] = {}
        admin = self.node.data_dir / "admin.token"
        wait_until(admin.is_file)
        with connect(self.node.address, ca=str(authority.ca), token=admin.read_text().strip()) as client:
            self.id = fill(client)
            for name, grants in GRANTS.items():
                self.tokens[name] = client.admin.create_token(name, grants=list(grants)).text
            certificate = authority.client("auditor")
            client.admin.create_identity("cert:auditor", grants=["read:ours"])
        self.certificate = str(certificate.certificate), str(certificate.key)
        self.token = self.tokens["reader"]
        self.context = ssl.create_default_context(cafile=str(self.ca))
        self.web = httpx.Client(
            base_url=f"https://127.0.0.1:{http_port}", verify=self.context, timeout=PATIENCE_S, trust_env=False
        )
        wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1")
            return self.over_http("reader", "SELECT 1") == [(1,)]
        except (pymysql.Error, httpx.HTTPError):
            return False

    def close(self) -> None:
        self.web.close()
        self.node.close()

    def ask(self, query: str, token: str | None = None, **options: Any) -> Any:
        with self.connect(token, **options) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchall()

    def connect(self, token: str | None = None, **options: Any) -> Any:
        password = self.token if token is None else token
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="ada", password=password, database="sandq",
            **({"ssl": self.context} | options),
        )  # fmt: skip

    def over_mysql(self, name: str, query: str) -> list[Any] | str:
        """Return the rows for a token, or the text of the refusal."""
        with self.connect(self.tokens[name]) as connection, connection.cursor() as cursor:
            cursor.execute("SET sandq_allow_full_scan = 1")
            try:
                cursor.execute(query)
            except pymysql.Error as error:
                assert error.args[0] == 1142, (name, query, error)
                return str(error.args[1])
            return [*cursor.fetchall()]

    def over_http(self, name: str, query: str) -> list[Any] | str:
        """Send the query over HTTP. Return the rows for a token, or the text of the refusal."""
        headers = {"authorization": f"Bearer {self.tokens[name]}"}
        answer = self.web.post("/sql", json={"statement": query, "full_scan": True}, headers=headers)
        if answer.status_code == 403:
            return str(answer.json()["detail"])
        assert answer.status_code == 200, (name, query, answer.text)
        return [tuple(row) for row in answer.json()["rows"]]

    def prepared(self, name: str, query: str, *values: str) -> bytes | str:
        """Return the packets of a prepared statement's response, or the text of the refusal."""
        with self.connect(self.tokens[name]) as connection, connection.cursor() as cursor:
            cursor.execute("SET sandq_allow_full_scan = 1")
            connection._execute_command(packets.Command.STMT_PREPARE, query)
            head = connection._read_packet().get_all_data()
            columns, parameters = struct.unpack_from("<HH", head, 5)
            for count in (parameters, columns):
                for _ in range(count + 1 if count else 0):
                    connection._read_packet()
            data = head[1:5] + struct.pack("<BI", 0, 1) + bytes((len(values) + 7) // 8) + b"\x01"
            data += b"\xfd\x00" * len(values)
            data += b"".join(bytes([len(value)]) + value.encode() for value in values)
            connection._execute_command(packets.Command.STMT_EXECUTE, data)
            found, ends = b"", 0
            try:
                while ends < 2:
                    packet = connection._read_packet()
                    ends += packet.is_eof_packet()
                    found += packet.get_all_data()
            except pymysql.Error as error:
                assert error.args[0] == 1142, (name, query, error)
                return str(error.args[1])
            return found


GRANTS = {
    "nothing": ["read:no-such-topic"],
    "producer": ["produce:secret", "produce:vault"],
    "group": ["read:secret/mine", "consume:secret/mine"],
    "manager": ["manage:secret", "manage:vault"],
    "reader": ["reader:ours"],
    "owner": ["read:secret", "read:vault"],
}


def fill(client: Any) -> str:
    """Store messages in every state. Return the id of a hidden one."""
    client.admin.create_topic("ours")
    client.admin.create_topic("theirs")
    for topic in ("ours", "theirs"):
        client.produce(topic, b"hello", delay="1h")
    client.admin.create_topic("secret", max_attempts=1)
    client.admin.create_topic("vault", kind="compacted")
    client.kv("vault").put("db/password", HIDDEN)
    id = client.produce("secret", HIDDEN, unique_key="u1", delay="1h")
    for group in ("mine", "other"):
        client.produce("secret", f"{HIDDEN} {group}")
        leases = client.leases("secret", group)
        leases.dead(leases.take(1), error=f"{HIDDEN} {group}")
        leases.take(1, lease="1h")  # longer than the tests take on a slow machine
    client.schedules("secret").create("daily", HIDDEN, every="1h")
    return str(id)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    os.mkdir(directory / "ca")
    secured = Secured(directory)
    yield secured
    secured.close()


def refused(work: Any) -> int:
    with pytest.raises(pymysql.Error) as caught:
        work()
    number: int = caught.value.args[0]
    return number


def test_query_returns_only_rows_that_the_token_may_read(secured: Secured) -> None:
    query = "SELECT text, state FROM messages WHERE topic = '{}' AND deliver_at > NOW()"
    assert secured.ask(query.format("ours")) == (("hello", "delayed"),)
    assert refused(lambda: secured.ask(query.format("theirs"))) == 1142
    assert secured.ask("SELECT topic FROM topics") == (("ours",),)


def test_missing_or_wrong_token_is_refused(secured: Secured) -> None:
    assert refused(lambda: secured.ask("SELECT 1", token="")) == 1045
    assert refused(lambda: secured.ask("SELECT 1", token="sq_nothing")) == 1045


def test_a_token_is_not_taken_in_the_clear(secured: Secured) -> None:
    assert refused(lambda: secured.ask("SELECT 1", ssl=None, ssl_disabled=True)) == 3159


NAMED = (
    "SELECT topic, text FROM messages WHERE topic = '{topic}' LIMIT 10",
    "SELECT topic, text, state FROM messages WHERE topic = '{topic}' AND deliver_at > NOW()",
    "SELECT text FROM messages WHERE topic = '{topic}' AND state = 'delayed'",
    "SELECT text FROM messages WHERE topic = '{topic}' AND state IN ('leased', 'waiting')",
    "SELECT * FROM messages WHERE topic = '{topic}' AND id = '{id}'",
    "SELECT text FROM messages WHERE topic = '{topic}' AND unique_key = 'u1'",
    "SELECT text FROM messages WHERE topic = '{topic}' AND `key` LIKE 'what%' AND deliver_at > '1970-01-02'",
    "SELECT text FROM messages WHERE topic IN ('ours', '{topic}') AND `offset` > '0'",
    "SELECT text FROM messages WHERE topic = 'ours' OR topic = '{topic}'",
    "SELECT COUNT(*) FROM messages WHERE topic = '{topic}'",
    "SELECT m.text FROM topics t JOIN messages m ON m.topic = '{topic}'",
    "SELECT (SELECT MAX(text) FROM messages WHERE topic = '{topic}') AS x",
    "SELECT 1 WHERE EXISTS (SELECT * FROM messages WHERE topic = '{topic}')",
    "WITH x AS (SELECT text FROM messages WHERE topic = '{topic}') SELECT * FROM x",
    "SELECT 1 AS text UNION ALL SELECT text FROM messages WHERE topic = '{topic}'",
    "SELECT * FROM dead_letters WHERE topic = '{topic}'",
    "SELECT * FROM dead_letters WHERE topic = '{topic}' AND `group` = 'other'",
    "SELECT * FROM leases WHERE topic = '{topic}'",
    "SELECT * FROM leases WHERE topic = '{topic}' AND `group` = 'other'",
    "SELECT * FROM `groups` WHERE topic = '{topic}'",
    "SELECT * FROM partitions WHERE topic = '{topic}'",
    "SELECT * FROM forecast WHERE topic = '{topic}'",
    "SELECT * FROM `keys` WHERE topic = '{topic}'",
    "SELECT * FROM `keys` WHERE topic = '{topic}' AND `key` = 'db/password'",
    "SELECT * FROM `keys` WHERE topic = '{topic}' AND `key` LIKE 'db%'",
    "SELECT * FROM `keys` WHERE topic = '{topic}' AND `key` > 'a' AND `partition` = 0",
    "SELECT * FROM z4.task WHERE queue = '{topic}'",
    "SELECT * FROM z4.task WHERE queue = '{topic}' AND id = '{id}'",
)
"""A named topic without the right to read is refused, with the same text whether or not it exists."""
LISTED = (
    "SELECT * FROM topics WHERE topic = '{topic}'",
    "SELECT * FROM schedules WHERE topic = '{topic}'",
    "SELECT * FROM schedules WHERE topic = '{topic}' AND name = 'daily'",
    "SELECT * FROM z4.queue WHERE id = '{topic}'",
)
"""A list of topics has no rows of hidden topics."""


def reading(query: str, topic: str, id: str) -> str:
    return query.replace("{topic}", topic).replace("{id}", id)


@pytest.mark.parametrize("wire", ["over_mysql", "over_http"])
@pytest.mark.parametrize("name", ["nothing", "producer", "manager", "group"])
def test_topic_that_may_not_be_read_is_refused_as_a_missing_one(secured: Secured, wire: str, name: str) -> None:
    ask = getattr(secured, wire)
    for query in NAMED:
        for topic in ("secret", "vault"):
            refusal = ask(name, reading(query, topic, secured.id))
            assert isinstance(refusal, str), (query, refusal)
            missing = ask(name, reading(query, "missing", secured.id))
            assert refusal.replace(f"'{topic}'", "'missing'") == missing, query
    for query in LISTED:
        for topic in ("secret", "vault", "missing"):
            assert ask(name, reading(query, topic, secured.id)) == [], query


@pytest.mark.parametrize("wire", ["over_mysql", "over_http"])
def test_every_table_unbounded_has_only_rows_that_may_be_read(secured: Secured, wire: str) -> None:
    ask = getattr(secured, wire)
    for name in ("nothing", "producer", "manager", "group", "reader"):
        for database, table in TABLES:
            if table == "nodes":
                continue  # every authenticated client sees the nodes
            rows = ask(name, f"SELECT * FROM {database}.`{table}`")
            assert HIDDEN not in str(rows) and "secret" not in str(rows) and "vault" not in str(rows), (name, table)
            if name != "reader":
                assert rows == [], (name, table)
        assert ask(name, f"SELECT text FROM messages WHERE id = '{secured.id}'") == []
        assert ask(name, "SELECT text FROM messages WHERE unique_key = 'u1'") == []
        assert ask(name, "SELECT text FROM messages WHERE topic LIKE 'sec%' AND deliver_at > NOW()") == []
        assert ask(name, "SELECT error FROM dead_letters WHERE `group` = 'other'") == []
    assert ask("reader", "SELECT topic FROM topics") == [("ours",)]


@pytest.mark.parametrize("wire", ["over_mysql", "over_http"])
def test_reader_of_one_group_sees_only_its_dead_letters(secured: Secured, wire: str) -> None:
    ask = getattr(secured, wire)
    of_group = "SELECT error FROM dead_letters WHERE `group` = 'mine'"
    for query in (of_group, f"{of_group} AND topic = 'secret'"):
        assert ask("group", query) == [(f"{HIDDEN} mine",)]
    both = ask("group", "SELECT error FROM dead_letters WHERE `group` IN ('mine', 'other')")
    assert both == [(f"{HIDDEN} mine",)]
    refusal = ask("group", "SELECT error FROM dead_letters WHERE topic = 'secret' AND `group` IN ('mine', 'other')")
    assert isinstance(refusal, str) and "other" in refusal
    missing = ask("group", "SELECT error FROM dead_letters WHERE topic = 'secret' AND `group` IN ('mine', 'gone')")
    assert isinstance(missing, str) and refusal.replace("other", "gone") == missing


@pytest.mark.parametrize("wire", ["over_mysql", "over_http"])
def test_reader_of_topics_sees_all_content(secured: Secured, wire: str) -> None:
    ask = getattr(secured, wire)
    assert ask("owner", f"SELECT text FROM messages WHERE id = '{secured.id}'") == [(HIDDEN,)]
    assert ask("owner", "SELECT text FROM `keys` WHERE topic = 'vault' AND `key` LIKE 'db%'") == [(HIDDEN,)]
    assert len(ask("owner", "SELECT error FROM dead_letters WHERE topic = 'secret'")) == 2
    assert ask("owner", "SELECT text FROM schedules") == [(HIDDEN,)]


def test_prepared_statements_go_by_the_same_rights(secured: Secured) -> None:
    query = "SELECT text FROM messages WHERE topic = ? AND deliver_at > NOW()"
    for name in ("nothing", "producer", "manager", "group"):
        refusal = secured.prepared(name, query, "secret")
        assert isinstance(refusal, str)
        assert refusal.replace("secret", "missing") == secured.prepared(name, query, "missing")
        found = secured.prepared(name, "SELECT text FROM messages WHERE id = ?", secured.id)
        assert isinstance(found, bytes) and HIDDEN.encode() not in found
    assert HIDDEN.encode() in secured.prepared("owner", query, "secret")


def test_statements_about_the_schema_reveal_no_topics(secured: Secured) -> None:
    for query in (
        "SHOW TABLES",
        "SHOW DATABASES",
        "SHOW FULL COLUMNS FROM messages",
        "SHOW GRANTS",
        "SHOW PROCESSLIST",
        "DESCRIBE messages",
        "EXPLAIN SELECT * FROM messages WHERE topic = 'theirs'",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM information_schema.partitions",
        "SELECT * FROM information_schema.columns",
    ):
        for wire in (secured.over_mysql, secured.over_http):
            rows = wire("nothing", query)
            assert isinstance(rows, list) and "secret" not in str(rows) and "vault" not in str(rows), query


def test_certificate_without_a_token_reads_by_its_own_rights_over_http(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=str(secured.ca))
    context.load_cert_chain(*secured.certificate)
    with httpx.Client(base_url=secured.web.base_url, verify=context, timeout=PATIENCE_S, trust_env=False) as web:

        def ask(query: str) -> httpx.Response:
            return web.post("/sql", json={"statement": query, "full_scan": True})

        assert ask("SELECT topic FROM topics").json()["rows"] == [["ours"]]
        assert ask("SELECT text FROM messages").json()["rows"] == [["hello"]]
        for query in NAMED:
            answers = [ask(reading(query, topic, secured.id)) for topic in ("secret", "vault", "missing")]
            assert [answer.status_code for answer in answers] == [403] * 3, query
            texts = {answer.json()["detail"] for answer in answers}
            assert len({text.replace("secret", "missing").replace("vault", "missing") for text in texts}) == 1, query
        for query in LISTED:
            for topic in ("secret", "vault"):
                assert ask(reading(query, topic, secured.id)).json()["rows"] == []
        for database, table in TABLES:
            assert HIDDEN not in ask(f"SELECT * FROM {database}.`{table}`").text


ENDLESS = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) SELECT COUNT(*) FROM r"


def test_principal_does_not_hold_all_sql_slots_over_http(secured: Secured) -> None:
    async def ask_twice_without_an_end() -> None:
        headers = {"authorization": f"Bearer {secured.tokens['reader']}"}
        async with (
            httpx.AsyncClient(
                base_url=str(secured.web.base_url), verify=secured.context, headers=headers, timeout=PATIENCE_S
            ) as web,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(2):
                tasks.start_soon(partial(web.post, "/sql", json={"statement": ENDLESS}))
            # A statement of another principal gets a slot, even if the two endless statements run already.
            for _ in range(5):
                answer = await anyio.to_thread.run_sync(secured.over_http, "owner", "SELECT 1")
                assert answer == [(1,)]
            tasks.cancel_scope.cancel()

    anyio.run(ask_twice_without_an_end)
