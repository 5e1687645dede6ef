"""MySQL clients work with one node and with three: `mysql`, Connector/J, and the queries of Grafana."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from sandq.sync import connect
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

CONNECTOR = ("com.mysql:mysql-connector-j:9.4.0", "49ed93c8b2bea9cb0929b85a8a28837b191d0f8eac6919fdcef16e36e2cd53b3")
"""Maven coordinates of Connector/J, and the SHA-256 of its file."""
REPOSITORY = Path.home() / ".m2" / "repository"
START = 1_893_456_000
"""Delivery time of the first message: 2030-01-01, in seconds since 1970."""

# Queries with macros expanded as in Grafana's documentation of its MySQL source.
GRAFANA = {
    "time series": "SELECT UNIX_TIMESTAMP(deliver_at) DIV 300 * 300 AS time_sec, state AS metric, COUNT(*) AS value "
    f"FROM messages WHERE topic = 't' AND deliver_at BETWEEN FROM_UNIXTIME({START}) AND FROM_UNIXTIME({START + 3600}) "
    "GROUP BY 1, 2 ORDER BY 1",
    "older grouping": "SELECT cast(cast(UNIX_TIMESTAMP(deliver_at)/(300) as signed)*300 as signed) AS time_sec, "
    "COUNT(*) AS value, 'messages' AS metric FROM messages "
    f"WHERE topic = 't' AND deliver_at >= FROM_UNIXTIME({START}) AND deliver_at <= FROM_UNIXTIME({START + 3600}) "
    "GROUP BY 1, 3 ORDER BY 1",
    "table": "SELECT UNIX_TIMESTAMP(deliver_at) AS time_sec, text FROM messages "
    f"WHERE topic = 't' AND deliver_at BETWEEN FROM_UNIXTIME({START}) AND FROM_UNIXTIME({START + 3600})",
    "schemas": "SELECT DISTINCT TABLE_SCHEMA from information_schema.TABLES "
    "where TABLE_TYPE != 'SYSTEM VIEW' ORDER BY TABLE_SCHEMA",
    "tables": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'sandq' ORDER BY table_name",
    "columns": "SELECT column_name, data_type FROM information_schema.columns "
    "WHERE table_schema = 'sandq' AND table_name = 'messages' ORDER BY column_name",
}

pytestmark = [pytest.mark.interop, pytest.mark.long]


@pytest.fixture(scope="module", params=["one node", "three nodes"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the SQL port of a cluster. Its topic `t` has 24 messages, due at intervals of five minutes."""
    directory = tmp_path_factory.mktemp("nodes")
    number = free_port()
    nodes: NodeProcess | ClusterProcess
    if request.param == "one node":
        nodes = NodeProcess(directory, SANDQ_LISTEN__SQL=f"127.0.0.1:{number}")
        nodes.start()
        address = nodes.address
    else:
        nodes = ClusterProcess(directory, options={"node2": {"SANDQ_LISTEN__SQL": f"127.0.0.1:{number}"}})
        nodes.start()
        address = nodes.nodes["node1"].address
    with connect(address) as client:
        wait_until(lambda: len(client.admin.cluster()["nodes"]) == (1 if request.param == "one node" else 3))
        client.admin.create_topic("t", partitions=4, replicas=1 if request.param == "one node" else 3)
        for place in range(24):
            client.produce("t", b'{"n": %d}' % place, deliver_at=(START + 300 * place) * 1000)
    wait_until(lambda: _answers(number))
    yield number
    nodes.close()


def _answers(port: int) -> bool:
    try:
        return bool(asked(port, "SELECT COUNT(*) FROM messages WHERE topic = 't' AND deliver_at > NOW()") == [(24,)])
    except pymysql.Error:
        return False


def asked(port: int, query: str) -> list[tuple[object, ...]]:
    connection = pymysql.connect(host="127.0.0.1", port=port, user="grafana", database="sandq")
    with connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def test_mysql_client_reads_rows(port: int) -> None:
    program = shutil.which("mariadb") or shutil.which("mysql")
    if program is None:
        pytest.skip("`mysql` is not installed: make system, or apt-get install mariadb-client")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [program or "", "--no-defaults", "-h", "127.0.0.1", "-P", str(port), "-u", "ada", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    found = run("sandq", "-e", "SELECT text FROM messages WHERE topic = 't' AND deliver_at = '2030-01-01 00:10:00'")
    assert found.stdout.splitlines() == ["text", '{"n": 2}'], found.stderr
    assert "task" in run("z4", "-e", "SHOW TABLES").stdout.splitlines()
    found = run("sandq", "-e", "UPDATE messages SET text = ''")
    assert found.returncode == 1 and "ERROR 1290" in found.stderr
    xml = run("sandq", "-X", "-e", "SELECT COUNT(*) AS n FROM messages WHERE topic = 't' AND deliver_at > NOW()")
    assert re.search(r'<field name="n">24</field>', xml.stdout)


@pytest.mark.parametrize("name", GRAFANA)
def test_queries_of_grafana_are_answered(port: int, name: str) -> None:
    rows = asked(port, GRAFANA[name])
    if name in ("time series", "older grouping"):
        assert [row[0] for row in rows] == [START + 300 * place for place in range(13)]
        assert {row[1] if name == "older grouping" else row[2] for row in rows} == {1}
    elif name == "table":
        assert len(rows) == 13
    else:
        first = {"schemas": "sandq", "tables": "dead_letters", "columns": "backoff"}
        assert rows[0][0] == first[name]


@pytest.mark.parametrize("options", ["", "&useServerPrepStmts=true&useCursorFetch=true&defaultFetchSize=5"])
def test_jdbc(port: int, options: str) -> None:
    jar = connector()
    program = ROOT / "docs" / "examples" / "jdbc" / "Due.java"
    url = f"jdbc:mysql://127.0.0.1:{port}/sandq?user=ada&sslMode=DISABLED{options}"
    done = subprocess.run(
        ["java", "-cp", str(jar), str(program), url, "t", "2030-01-01 00:10:00"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"TZ": "UTC", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        check=False,
    )
    assert done.stdout.splitlines() == [
        "columns of messages: 24",
        '2030-01-01 00:00:00.0 {"n": 0} 8',
        '2030-01-01 00:05:00.0 {"n": 1} 8',
        "refused: 1290",
    ], done.stderr


def connector() -> Path:
    """Return the file of Connector/J. Maven downloads it, and its checksum is verified."""
    for program, package in (("java", "default-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            pytest.skip(f"`{program}` is not installed: apt-get install {package}")
    name, sha256 = CONNECTOR
    group, artifact, version = name.split(":")
    jar = REPOSITORY / group.replace(".", "/") / artifact / version / f"{artifact}-{version}.jar"
    if not jar.is_file():
        command = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={name}", "-Dtransitive=false"]
        subprocess.run(command, check=True, timeout=PATIENCE_S)
    assert hashlib.sha256(jar.read_bytes()).hexdigest() == sha256
    return jar
