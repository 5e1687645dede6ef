"""The commands and the Python code of docs/sql.md run as they are, and its limits are right."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from sandq.model.config import load_config
from sandq.sql.budget import IDS, NESTING, STATEMENT_BYTES, STATEMENT_NODES, Budget
from sandq.sql.plan import TABLES_MAX
from sandq.sql.schema import MESSAGES, TABLES
from sandq.sql.wire.connection import IDLE_S, STATEMENTS
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell
from tests.support.waiting import PATIENCE_S, wait_until

PAGE = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (sandctl sql .+(?:\n        .+)*)$", PAGE, re.M)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, int]]:
    """Start a node that serves SQL. Return the node and its SQL port."""
    port = free_port()
    node = NodeProcess(
        tmp_path_factory.mktemp("node"), SANDQ_LISTEN__HTTP="none", SANDQ_LISTEN__SQL=f"127.0.0.1:{port}"
    )
    node.start()
    yield node, port
    node.close()


@pytest.fixture(scope="module")
def shell(node: tuple[NodeProcess, int], tmp_path_factory: pytest.TempPathFactory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("shell"), SANDCTL_SERVERS=node[0].address)
    shell.run("sandctl topic create orders --partitions 2")
    for number in range(3):
        value = f'{{"customer": "ada", "n": {number}}}'
        assert shell.run(f"sandctl produce orders '{value}' --in {number + 1}h").code == 0
    return shell


def test_page_has_commands() -> None:
    assert len(COMMANDS) == 6


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work_as_they_stand(shell: Shell, command: str) -> None:
    done = shell.run(command)
    assert done.code == 0, done
    if "describe" in command:
        assert "deliver_at" in done.out
    elif "explain" in command:
        assert "FETCH" in done.out
    else:
        assert "none" not in done.err, done


def test_programs_get_json_and_wrong_statements_end_with_2(shell: Shell) -> None:
    rows = shell.run('sandctl sql "select topic, messages from topics" -o jsonl').rows
    assert rows == [{"topic": "orders", "messages": 3}]
    for statement, told in (("selec 1", "error in your SQL syntax"), ("delete from messages", "this is read-only")):
        done = shell.run(f"sandctl sql '{statement}'")
        assert done.code == 2 and told in done.err, done
    assert shell.run("sandctl sql 'select * from messages where topic = \"orders\"' --full-scan -o jsonl").code == 0


def test_python_example_runs(node: tuple[NodeProcess, int], shell: Shell) -> None:
    (program,) = re.findall(r"```python\n(.+?)```", PAGE, re.S)
    program = program.replace("3306", str(node[1])).replace("2031-01-01", "2100-01-01")
    wait_until(lambda: _answers(node[1]))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout.count("customer") == 3, done.stderr


def test_mysql_example_runs(node: tuple[NodeProcess, int], shell: Shell) -> None:
    if shutil.which("mysql") is None:
        pytest.skip("`mysql` is not installed: make system, or apt-get install mariadb-client")
    wait_until(lambda: _answers(node[1]))
    (command,) = re.findall(r"^    (mysql .+)$", PAGE, re.M)
    command = command.replace("3306", str(node[1])).replace("mysql ", "mysql --no-defaults ", 1)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.splitlines() == ["topic\tmessages\tdelayed", "orders\t3\t3"], done.stderr


def _answers(port: int) -> bool:
    try:
        pymysql.connect(host="127.0.0.1", port=port, user="ada").close()
    except pymysql.Error:
        return False
    return True


def test_sql_gateway_serves_and_stops(node: tuple[NodeProcess, int], tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "sandq.cli", "sql", "--server", node[0].address, "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or _answers(port))
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_beyond_this_machine_it_wants_tls(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandq.cli", "sql", "--listen", "0.0.0.0:0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1 and "tls.sql: require" in done.stderr


def test_page_names_tables_and_columns() -> None:
    for database, name in TABLES:
        assert f"`{name}`" in PAGE, (database, name)
    (columns,) = re.findall(r"columns of `messages` are:\n\n(.+?)\.\n", PAGE, re.S)
    assert re.findall(r"`(\w+)`", columns) == [column.name for column in MESSAGES.columns]


def test_limits_equal_defaults() -> None:
    section, budget = load_config(None, {}).sql, Budget()
    assert (section.rows, section.bytes, section.memory_bytes) == (
        budget.scan_rows,
        budget.scan_bytes,
        budget.memory_bytes,
    )
    assert (section.rows, section.bytes, section.timeout_ms) == (1_000_000, 128 << 20, 30_000)
    assert (section.queries, section.connections) == (budget.queries, 100) == (4, 100)
    told = (
        f"a statement: {STATEMENT_BYTES >> 10} KiB, {STATEMENT_NODES:,} parts, brackets {NESTING} deep, "
        f"{TABLES_MAX} tables"
    )
    assert told in PAGE
    assert f"ids or keys that a query names: {IDS:,}" in PAGE
    assert f"prepared statements of a connection: {STATEMENTS}" in PAGE
    assert f"for {IDLE_S / 3600:g} hours" in PAGE
