"""The SQL process of a node ends with its node, even while statements run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pymysql
import trio

import sandq.testing
from sandq.model.config import load_config
from sandq.sql.wire import packets

AT_ONCE = "import sandq.tools.sql_process as process; process.END_S = 0.0; process.main()"
NOT_INTERRUPTED = (
    "SELECT REGEXP_LIKE(REPEAT(g, 80), '[0-7].{900}Z') FROM (SELECT GROUP_CONCAT(SHA2(CONCAT(column_name, "
    "ordinal_position, table_name), 256)) AS g FROM information_schema.columns) t"
)
"""One function call on a long text. It takes seconds."""


async def test_a_query_that_cannot_be_interrupted_does_not_keep_the_port() -> None:
    async with sandq.testing.broker() as broker:
        assert await trio.to_thread.run_sync(_exit_code, broker.address) == 1


def _exit_code(address: str) -> int:
    """Run the SQL process, close its input while a query ignores interrupts, and return the exit code."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said = {
            "servers": [address],
            "listeners": [listener.fileno()],
            "sql": load_config(None, {}).sql.model_dump(mode="json"),
            "tls": None,
            "own_hosts": [],
            "own_names": [],
            "insecure": False,
            "log_format": "json",
            "log_level": "error",
        }
        process = subprocess.Popen([sys.executable, "-c", AT_ONCE], stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        port = listener.getsockname()[1]
    connections: list[Any] = []
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(said).encode() + b"\n")
        process.stdin.flush()
        connections += [pymysql.connect(host="127.0.0.1", port=port, user="a") for _ in range(2)]
        asking, looking = connections
        asking._execute_command(packets.Command.QUERY, NOT_INTERRUPTED)
        with looking.cursor() as cursor:
            while True:
                cursor.execute("SHOW PROCESSLIST")
                if [row[4] for row in cursor.fetchall()].count("Query") == 2:
                    break
        process.stdin.close()
        return process.wait(20)
    finally:
        process.kill()
        process.wait()
        for connection in connections:
            connection._force_close()
