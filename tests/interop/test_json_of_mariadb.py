"""A real MariaDB server gives the stored answers of `tests/data/sql_json_answers.json`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sql_json import ASKED, plain
from tests.support.waiting import wait_until

PROGRAMS = ("mariadbd", "mariadb-install-db")


@pytest.fixture(scope="module")
def cursor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pymysql = pytest.importorskip("pymysql")
    if any(shutil.which(program) is None for program in PROGRAMS):
        pytest.skip("MariaDB's server is not installed: apt-get install mariadb-server")
    folder = tmp_path_factory.mktemp("mariadb")
    data, socket = folder / "data", folder / "s"
    own = [f"--datadir={data}", f"--user={Path.home().owner()}"]
    install = [
        "mariadb-install-db",
        "--no-defaults",
        *own,
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
    ]
    subprocess.run(install, check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        options = ["--no-defaults", *own, f"--socket={socket}", "--skip-networking", f"--pid-file={folder / 'pid'}"]
        server = subprocess.Popen(["mariadbd", *options], stdout=log, stderr=log)
    try:
        wait_until(socket.exists)
        with pymysql.connect(unix_socket=str(socket), user="root", charset="utf8mb4") as connection:
            found = connection.cursor()
            found.execute("SET NAMES utf8mb4 COLLATE utf8mb4_bin")
            yield found
    finally:
        server.terminate()
        server.wait()


@pytest.mark.long
def test_mariadb_answers_json_queries_as_stored(cursor: Any) -> None:
    wrong = []
    for asked in ASKED:
        if asked.mysql is None:  # skip differences to MySQL, because a newer MariaDB may follow MySQL
            cursor.execute(asked.text_for_mariadb)
            found = [[plain(cell) for cell in row] for row in cursor.fetchall()]
            if found != asked.mariadb:
                wrong.append((asked.query, found, asked.mariadb))
    assert wrong == []
