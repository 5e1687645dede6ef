"""Tests of `sandq doctor`: each check reports its result and the remedy. The doctor leaves no trace."""

from __future__ import annotations

import fcntl
import importlib.metadata
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandq.cli import main
from sandq.model.config import load_config
from sandq.model.config_schema import Address
from sandq.model.limits import Limits
from sandq.storage import identity
from sandq.storage.files import RealFiles
from sandq.storage.level_stores import LevelStores
from sandq.storage.pointers import Pointers, StorePointer
from sandq.tools.doctor import check_disk, check_machine, check_ports
from sandq.tools.doctor.check import Check, bytes_text
from sandq.tools.doctor.check_data import STORES_NAME, DataDirectory
from tests.support.ports import free_port
from tests.support.storage.log_bed import GROUP, append, entry, flip, members, no_op, picture, segment, write_log


@pytest.fixture(autouse=True)
def _few_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk a hundred syncs take seconds each time."""
    monkeypatch.setattr(check_disk, "SYNCS", 5)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A node whose ports are free and whose data directory does not exist yet."""
    ports = {f"SANDQ_LISTEN__{name}": f"127.0.0.1:{free_port()}" for name in ("CLIENT", "HTTP", "PEER", "GOSSIP")}
    return {**ports, "SANDQ_NODE__DATA_DIR": str(tmp_path / "data")}


def doctor(environ: dict[str, str], *args: object) -> Result:
    return CliRunner(env=environ).invoke(main, ["doctor", *map(str, args)])


def checks(environ: dict[str, str], *args: object) -> dict[str, Any]:
    """Return the findings by check."""
    return {row["what"]: row for row in json.loads(doctor(environ, *args, "--json").stdout)["checks"]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory as a node leaves it."""
    path = tmp_path / "data"
    files = RealFiles(path)
    (path / "lock").touch()
    identity.save(files, identity.Identity("node1", "store-uuid", "cluster-uuid"))
    Pointers.open(files).update()
    pointers = Pointers.open(files)
    pointers.update(put=[StorePointer(GROUP, 1, store) for store in pointers.mint()])
    write_log(path, [[members(), no_op(1)], [entry(2, append(b"x"))]])
    stores = LevelStores(path / STORES_NAME)
    stores.write([(b"\0\0\0\1k", b"v")])
    stores.flush()
    stores.close()
    return path


def of_data(path: Path, node: str = "node1") -> dict[str, Check]:
    return {check.what: check for check in DataDirectory(path, node).checks()}


def test_a_machine_on_which_all_is_well(environ: dict[str, str], tmp_path: Path) -> None:
    result = doctor(environ)
    assert result.exit_code == 0, result.output
    for what in ("python", "config", "data_dir", "free space", "fsync", "port client", "port http", "clock"):
        assert f" {what} " in result.stdout
    assert " ok" in result.stdout.splitlines()[-1] and "failed" not in result.stdout
    assert not (tmp_path / "data").exists(), "it makes nothing"
    assert list(tmp_path.iterdir()) == []
    found = json.loads(doctor(environ, "--json").stdout)
    assert found["failed"] == 0 and found["warnings"] == sum(row["state"] == "warning" for row in found["checks"])


def test_a_configuration_that_is_wrong(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("node: {idd: x}\nstorage: {segment_bytes: 1}\n")
    result = doctor(environ, "--config", tmp_path / "bad.yaml")
    assert result.exit_code == 1
    assert "bad.yaml:1:8: node.idd" in result.stdout and "bad.yaml:2:26" in result.stdout
    assert "skipped" in result.stdout and "Traceback" not in result.output
    assert doctor(environ, "--config", tmp_path / "none.yaml").exit_code == 1
    assert doctor(environ, "--confg", "x").exit_code == 2


def test_undamaged_data_is_ok(environ: dict[str, str], data: Path) -> None:
    before = picture(data)
    found = checks(environ)
    assert {found[what]["state"] for what in ("lock", "identity", "wal", "stores")} == {"ok"}, found
    assert "store-uuid" in found["identity"]["found"] and "1 groups" in found["wal"]["found"]
    assert "1 tables" in found["stores"]["found"]
    assert picture(data) == before, "the doctor must change no byte and no file time"


def test_data_that_others_may_read(data: Path) -> None:
    for path in (data, *data.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert of_data(data)["mode"].state == "ok"
    data.chmod(0o755)
    check = of_data(data)["mode"]
    assert (check.state, check.todo) == ("warning", f"chmod -R go= {data}")
    assert check.found == f"{data} is open to others than its owner (mode 755)"
    closed = data / "wal"
    for path in closed.iterdir():
        path.chmod(0o644)
    (data / "link").symlink_to(data.parent)
    (data / "lock").chmod(0o640)
    assert of_data(data)["mode"].found.endswith("(mode 755), and so are lock: they may read messages")
    closed.chmod(0o750)
    for name in "abcd":
        (closed / name).touch()
        (closed / name).chmod(0o644)
    found = of_data(data)["mode"].found
    assert "(mode 755), and so are lock, wal/" in found
    opened = 1 + sum(1 for _ in closed.iterdir())
    assert found.endswith(f" and {opened - 3} more: they may read messages"), found


def test_data_of_another_node_is_reported(data: Path) -> None:
    check = of_data(data, "node2")["identity"]
    assert check.state == "failed" and "node1" in check.found and "node2" in check.found


def test_a_directory_that_is_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("x")
    assert of_data(tmp_path)["identity"].state == "failed"
    assert of_data(tmp_path / "absent")["data"].state == "ok"


def test_checks_of_a_running_node_skip_log_and_stores(data: Path) -> None:
    before = picture(data)
    with (data / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = of_data(data)
    assert "a node is running" in found["lock"].found
    assert (found["wal"].state, found["stores"].state) == ("skipped", "skipped")
    assert picture(data) == before
    assert "no process" in of_data(data)["lock"].found


def test_damage_is_found(data: Path) -> None:
    log = segment(data)
    flip(log, 130)
    check = of_data(data)["wal"]
    assert check.state == "failed" and "is damaged at byte" in check.found and "sandq wal dump" in check.todo
    flip(log, 130)
    content = log.read_bytes().rstrip(b"\0")
    flip(log, len(content) - 4)
    check = of_data(data)["wal"]
    assert check.state == "ok" and "torn" in check.found
    table = next((data / STORES_NAME).glob("*.ldb"))
    table.unlink()
    check = of_data(data)["stores"]
    assert check.state == "failed" and str(table.parent) in check.found + str(table.parent)
    (data / STORES_NAME / "CURRENT").unlink()
    assert of_data(data)["stores"].state == "failed"
    (data / "stores").unlink()
    assert "stores is missing" in of_data(data)["wal"].found
    flip(data / "identity", 25)
    assert of_data(data)["identity"].state == "failed"


def test_a_data_directory_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    assert check_disk.check_data_dir(tmp_path / "file").state == "failed"
    assert check_disk.check_data_dir(tmp_path / "file" / "below").state == "failed"
    assert check_disk.check_data_dir(tmp_path / "a" / "b").state == "ok"
    monkeypatch.setattr(os, "access", lambda *args: False)
    assert "cannot be written" in check_disk.check_data_dir(tmp_path).found
    assert "cannot be written" in check_disk.check_data_dir(tmp_path / "a" / "b").found


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("none / ext4 rw 0 0", "ok"),
        ("none / tmpfs rw 0 0", "warning"),
        ("none / ext4 rw 0 0\nhost:/x {} nfs4 rw 0 0", "warning"),
        ("none {} tmpfs rw 0 0\nnone {}/deeper ext4 rw 0 0", "warning"),
        ("none / overlay rw 0 0", "ok"),
        ("", "skipped"),
    ],
)
def test_kind_of_file_system_is_checked(tmp_path: Path, line: str, state: str) -> None:
    mounts = line.replace("{}", str(tmp_path))
    assert check_disk.check_file_system(tmp_path / "data", mounts).state == state


def test_space_and_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, {})
    assert check_disk.needed_bytes(config) == (3 * 64 + 2 * 32 + 64) << 20
    assert check_disk.check_space(tmp_path, 1).state == "ok"
    short = check_disk.check_space(tmp_path, 1 << 60)
    assert short.state == "warning" and "1048576.0 TiB" in short.found
    hopeless = check_disk.check_space(tmp_path, 1 << 60, 1 << 59)
    assert hopeless.state == "failed" and "cannot start with less than 524288.0 TiB" in hopeless.found
    assert check_disk.least_bytes(config, tmp_path) == 64 << 20
    (tmp_path / "wal").mkdir()
    assert check_disk.least_bytes(config, tmp_path) == 0, "the log has its segments"
    (tmp_path / "wal").rmdir()
    times = check_disk.sync_times_ms(tmp_path)
    assert times == sorted(times) and len(times) <= check_disk.SYNCS and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(check_disk, "sync_times_ms", lambda path: [1.0] * 50 + [30.0] * 50)
    slow = next(check_disk.check_syncs(tmp_path, {}))
    assert slow.state == "warning" and "p99 30.00 ms" in slow.found
    monkeypatch.setattr(check_disk, "sync_times_ms", lambda path: [1.0] * 99 + [30.0])
    assert next(check_disk.check_syncs(tmp_path, {})).state == "ok", (
        "one slow sync of a hundred does not change the p99"
    )


@pytest.fixture
def stranger() -> Iterator[Address]:
    """A program listens and sends nothing that the doctor understands."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.sendall(b"220 mail ready\r\n")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield Address("127.0.0.1", listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def test_a_port_that_another_program_has(stranger: Address, environ: dict[str, str]) -> None:
    for name in ("CLIENT", "HTTP"):
        found = checks({**environ, f"SANDQ_LISTEN__{name}": str(stranger)})[f"port {name.lower()}"]
        assert found["state"] == "failed" and "another program" in found["found"], name
    for name in ("PEER", "GOSSIP"):
        taken = {**environ, f"SANDQ_LISTEN__{name}": str(stranger)}
        assert checks(taken)[f"port {name.lower()}"]["state"] == "failed"
        alone = checks({**taken, "SANDQ_CLUSTER__MEMBERSHIP": "static"})[f"port {name.lower()}"]
        assert alone["state"] == "ok" and "not used" in alone["found"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        port = udp.getsockname()[1]
        found = checks({**environ, "SANDQ_LISTEN__GOSSIP": f"127.0.0.1:{port}"})["port gossip"]
        assert found["state"] == "failed", "the port must be free for UDP too"
    assert doctor({**environ, "SANDQ_LISTEN__CLIENT": str(stranger)}).exit_code == 1


def test_ports_that_need_not_be_free(environ: dict[str, str]) -> None:
    found = checks({**environ, "SANDQ_LISTEN__CLIENT": "127.0.0.1:0", "SANDQ_LISTEN__HTTP": "none"})
    assert found["port client"]["state"] == found["port http"]["state"] == "ok"
    environ |= {"SANDQ_LISTEN__CLIENT": "192.0.2.1:7170", "SANDQ_SECURITY__INSECURE": "true"}
    found = checks(environ)
    assert found["port client"]["state"] == "failed" and "listen.client" in found["port client"]["todo"]
    assert found["security"]["state"] == "warning" and "listen.client on 192.0.2.1" in found["security"]["found"]


@pytest.mark.parametrize(("store", "state"), [("mine", "ok"), ("theirs", "failed")])
def test_a_port_that_a_node_has(stranger: Address, monkeypatch: pytest.MonkeyPatch, store: str, state: str) -> None:
    monkeypatch.setattr(
        check_ports, "node_at_client_port", lambda address, config=None: check_ports.Node("node9", store)
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        environ = {
            "SANDQ_LISTEN__CLIENT": str(stranger),
            "SANDQ_LISTEN__HTTP": "none",
            "SANDQ_LISTEN__GOSSIP": f"127.0.0.1:{other.getsockname()[1]}",
        }
        check, *_, gossip = check_ports.check_ports(load_config(None, environ), "mine")
        environ |= {"SANDQ_LISTEN__SQL": environ["SANDQ_LISTEN__GOSSIP"], "SANDQ_LISTEN__GOSSIP": "127.0.0.1:0"}
        *_, sql = check_ports.check_ports(load_config(None, environ), "mine")
    assert check.state == gossip.state == sql.state == state and "node9" in check.found


def test_a_port_of_a_node_that_is_too_busy_to_answer(stranger: Address) -> None:
    """Once the doctor reported that another program uses the port and that the node cannot run."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        environ = {
            "SANDQ_LISTEN__CLIENT": str(stranger),
            "SANDQ_LISTEN__HTTP": "none",
            "SANDQ_LISTEN__GOSSIP": f"127.0.0.1:{other.getsockname()[1]}",
        }
        config = load_config(None, environ)
        client, *_, gossip = check_ports.check_ports(config, "mine", is_running=True)
        assert (client.state, gossip.state) == ("warning", "ok") and "did not say so in 2 s" in client.found
        client, *_, gossip = check_ports.check_ports(config, "mine")
        assert client.state == gossip.state == "failed" and "another program" in client.found


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 10, 9), "failed"), ((3, 11, 0), "ok"), ((3, 14, 10), "ok"), ((3, 15, 0), "warning")],
)
def test_python_outside_of_the_tested_versions_is_named(version: tuple[int, ...], state: str) -> None:
    check = check_machine.check_python(version)
    assert (check.state, check.found.partition(" ")[0]) == (state, ".".join(map(str, version)))
    assert state == "ok" or check.todo == "run sandq with Python 3.11 to 3.14"


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*requires: str) -> list[Check]:
        return list(check_machine.check_packages(lambda: requires))

    version = importlib.metadata.version("click")
    assert [check.state for check in found("click>=8,<9", "PyYAML (>=6)", 'nonsense>=1; extra == "dev"')] == ["ok"]
    assert found(f"click=={version}")[0].state == "ok"
    wrong = found("click<8")[0]
    assert wrong.state == "failed" and version in wrong.found and wrong.todo == "pip install 'click<8'"
    absent = found("no-such-thing>=1", "click>=8")
    assert [check.state for check in absent] == ["failed", "ok"] and "cannot be imported" in absent[0].found

    other_python = found("no-such-thing<2,>=1; python_version < '3.0'", "click>=8; python_version >= '3.11'")
    assert [(check.state, check.found[:1]) for check in other_python] == [("ok", "1")]

    def missing() -> None:
        raise importlib.metadata.PackageNotFoundError("sandq")

    assert [check.state for check in check_machine.check_packages(missing)] == ["warning"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "wanted", "fine"),
    [
        ("1.2.3", ">=1.2,<2", True),
        ("2.0", ">=1.2,<2", False),
        ("0.3.17", "==0.3.17", True),
        ("0.3.17.1", "==0.3.17", False),
        ("6.0", "==6.0.0", True),
        ("1.9", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("1.4.2", "==1.4.*", True),
        ("1.2", "!=1.2", False),
        ("1.10", ">1.9", True),
        ("2.0rc1", "<=2.0", True),
        ("1.0", "", True),
    ],
)
def test_versions(version: str, wanted: str, fine: bool) -> None:
    assert check_machine.fits(version, wanted) is fine


def test_open_files_and_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_machine.check_open_files(Limits(connections=100), 5000).state == "ok"
    few = check_machine.check_open_files(Limits(connections=10_000), 1024)
    assert few.state == "warning" and "ulimit -n 11100" in few.todo
    # The clocks of this test are fake: the doctor would report a machine that pauses between reading the two clocks.
    walls: Iterator[float] = itertools.repeat(1_800_000_000.0)
    real = {name: getattr(time, name) for name in ("strftime", "gmtime")}
    clocks = SimpleNamespace(time=lambda: next(walls), monotonic=lambda: 5.0, sleep=lambda seconds: None, **real)
    monkeypatch.setattr(check_machine, "time", clocks)
    monkeypatch.setattr(check_machine, "ntp_state", lambda: True)
    assert check_machine.check_clock(500, 0.0).state == "ok"
    monkeypatch.setattr(check_machine, "ntp_state", lambda: None)
    assert check_machine.check_clock(500, 0.0).state == "ok"
    monkeypatch.setattr(check_machine, "ntp_state", lambda: False)
    assert check_machine.check_clock(500, 0.0).state == "warning"
    walls = iter([1_800_000_000.0, 1_800_000_009.0])
    assert "moved by" in check_machine.check_clock(500, 0.0).found
    clocks.time = lambda: 5.0
    assert check_machine.check_clock(500, 0.0).state == "failed"


def test_sizes_as_people_say_them() -> None:
    assert [bytes_text(count) for count in (5, 2048, 3 << 20, 5 << 29)] == ["5 bytes", "2.0 KiB", "3.0 MiB", "2.5 GiB"]
