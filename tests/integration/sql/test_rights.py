"""A secured node serves SQL: a password is a token, it goes by TLS, and the node judges what it may read."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sandq.sync import connect
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import wait_until


class Secured:
    """A node with topics `ours` and `theirs`, and a token that may read the one."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory / "ca")
        pair = authority.node("node1", "127.0.0.1")
        self.ca = authority.ca
        self.port = free_port()
        self.node = NodeProcess(
            directory,
            SANDQ_LISTEN__HTTP="none",
            SANDQ_LISTEN__SQL=f"127.0.0.1:{self.port}",
            SANDQ_SECURITY__AUTHENTICATION="require",
            SANDQ_TLS__CERT_FILE=str(pair.certificate),
            SANDQ_TLS__KEY_FILE=str(pair.key),
            SANDQ_TLS__CA_FILE=str(authority.ca),
            SANDQ_TLS__PEER="off",
        )
        self.node.start(wait=False)
        admin = self.node.data_dir / "admin.token"
        wait_until(admin.is_file)
        with connect(self.node.address, ca=str(authority.ca), token=admin.read_text().strip()) as client:
            for topic in ("ours", "theirs"):
                client.admin.create_topic(topic)
                client.produce(topic, b"hello", delay="1h")
            self.token = client.admin.create_token("reader", grants=["reader:ours"]).text
        wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1")
        except pymysql.Error:
            return False
        return True

    def ask(self, query: str, token: str | None = None, **options: Any) -> Any:
        context = ssl.create_default_context(cafile=str(self.ca))
        password = self.token if token is None else token
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="ada", password=password, database="sandq",
            **({"ssl": context} | options),
        )  # fmt: skip
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchall()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    os.mkdir(directory / "ca")
    secured = Secured(directory)
    yield secured
    secured.node.close()


def refused(work: Any) -> int:
    with pytest.raises(pymysql.Error) as caught:
        work()
    number: int = caught.value.args[0]
    return number


def test_who_asks_reads_what_its_token_may(secured: Secured) -> None:
    query = "SELECT text, state FROM messages WHERE topic = '{}' AND deliver_at > NOW()"
    assert secured.ask(query.format("ours")) == (("hello", "delayed"),)
    assert refused(lambda: secured.ask(query.format("theirs"))) == 1142
    assert secured.ask("SELECT topic FROM topics") == (("ours",),)


def test_who_shows_nothing_or_something_wrong_is_not_let_in(secured: Secured) -> None:
    assert refused(lambda: secured.ask("SELECT 1", token="")) == 1045
    assert refused(lambda: secured.ask("SELECT 1", token="sq_nothing")) == 1045


def test_a_token_is_not_taken_in_the_clear(secured: Secured) -> None:
    assert refused(lambda: secured.ask("SELECT 1", ssl=None, ssl_disabled=True)) == 3159
