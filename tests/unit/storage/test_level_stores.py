"""Tests of LevelDB in a real directory: copies, damage, other processes, and a full disk."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandq.model.errors import Corruption, DataDirInUse, StorageFailed
from sandq.storage import level_check, level_stores
from sandq.storage.level_stores import LevelStores
from sandq.storage.stores import Change, Row
from tests.support.paths import ROOT

END = b"\xff"


def everything(stores: LevelStores) -> list[Row]:
    return stores.scan(b"", END)


def copied(path: Path, to: Path) -> Path:
    """Return a copy of the directory as after the worst power loss: LevelDB's own log is garbage.

    LevelDB may be running. The copy is consistent if no MANIFEST has changed meanwhile.
    """
    while True:
        before = manifests(path)
        try:
            shutil.copytree(path, to)
        except shutil.Error as error:
            # The copy is repeated only if a compaction removed a file meanwhile.
            for source, _, why in error.args[0]:
                assert "No such file" in why, (source, why)
        else:
            if manifests(path) == before:
                break
        shutil.rmtree(to)
    for log in to.glob("*.log"):
        log.write_bytes(random.Random(0).randbytes(log.stat().st_size))
    return to


def manifests(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("MANIFEST-*")}


def found_in(path: Path) -> list[Row]:
    stores = LevelStores(path, create=False)
    try:
        return everything(stores)
    finally:
        stores.close()


def numbered(first: int, last: int, size: int = 100) -> list[Change]:
    return [(b"%08d" % number, b"v%d" % number + b"." * size) for number in range(first, last)]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[LevelStores]:
    stores = LevelStores(tmp_path / "stores")
    yield stores
    stores.close()


# Flush


def test_flush_stores_exactly_the_written_rows(stores: LevelStores, tmp_path: Path) -> None:
    written: list[Change] = []
    for round_ in range(4):
        changes = numbered(round_ * 1000, round_ * 1000 + 1000)
        stores.write(changes)
        written += changes
        stores.flush()
        assert found_in(copied(stores.path, tmp_path / f"copy{round_}")) == written


def test_a_flush_rewrites_no_table(stores: LevelStores) -> None:
    inodes: dict[str, int] = {}
    for round_ in range(3):
        stores.write(numbered(round_ * 500, round_ * 500 + 500))
        stores.flush()
        now = {path.name: path.stat().st_ino for path in stores.path.glob("*.ldb")}
        assert inodes.items() <= now.items() and len(now) == len(inodes) + 1
        inodes = now


def test_without_a_flush_nothing_of_leveldbs_log_is_believed(stores: LevelStores, tmp_path: Path) -> None:
    stores.write(numbered(0, 10))
    stores.flush()
    stores.write(numbered(10, 20))
    stores.write([(b"00000003", None)])
    shutil.copytree(stores.path, tmp_path / "copy")
    assert (tmp_path / "copy" / "000004.log").stat().st_size > 0
    assert found_in(tmp_path / "copy") == numbered(0, 10)


def test_a_flush_of_nothing(stores: LevelStores, tmp_path: Path) -> None:
    stores.flush()
    stores.flush()
    assert found_in(copied(stores.path, tmp_path / "copy")) == []


def test_flush_has_all_earlier_writes_during_other_writes(stores: LevelStores, tmp_path: Path) -> None:
    written = 0
    stop, pause = threading.Event(), threading.Lock()

    def write() -> None:
        nonlocal written
        while not stop.is_set() and written < 50_000:
            with pause:
                stores.write([(b"%08d" % written, b"x" * 1000)])
                written += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for round_ in range(5):
            before = written
            stores.flush()
            with pause:
                copy = copied(stores.path, tmp_path / f"copy{round_}")
            numbers = [int(key) for key, _ in found_in(copy)]
            assert numbers == list(range(len(numbers))) and len(numbers) >= before
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_in_mid_run_is_a_prefix_from_the_last_flush_on(tmp_path: Path, seed: int) -> None:
    """Random writes, flushes and compactions. Memtables above 16 MiB become tables automatically."""
    rng = random.Random(seed)
    path = tmp_path / "stores"
    stores = LevelStores(path)
    model: dict[bytes, bytes] = {}
    states: list[dict[bytes, bytes]] = [{}]
    flushed = 0
    for step in range(40):
        size = 3_000_000 if rng.randrange(4) == 0 else rng.randrange(1000)
        changes: list[Change] = [(b"k%03d" % rng.randrange(60), rng.randbytes(64) * (size // 64)) for _ in range(2)]
        changes += [(b"k%03d" % rng.randrange(60), None), (b"n", b"%d" % len(states))]
        stores.write(changes)
        for key, value in changes:
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        states.append(dict(model))
        what = rng.randrange(8)
        if what == 0:
            stores.flush()
            flushed = len(states) - 1
        elif what == 1:
            stores.compact(b"k", b"l")
            flushed = len(states) - 1
        elif what == 2:
            copy = copied(path, tmp_path / f"copy{step}")
            found = dict(found_in(copy))
            number = int(found.get(b"n", b"0"))
            assert number >= flushed and found == states[number], f"seed {seed}"
            shutil.rmtree(copy)
    stores.close()
    number = int(dict(found_in(path)).get(b"n", b"0"))
    assert number >= flushed and dict(found_in(path)) == states[number], f"seed {seed}"


WRITER = """
import sys
from sandq.storage.level_stores import LevelStores
stores = LevelStores(sys.argv[1])
first = int((stores.get(b"n") or b"-1").decode()) + 1
print("opened", first, flush=True)
for number in range(first, 10**9):
    stores.write([(b"k%08d" % number, b"." * 3000), (b"n", b"%d" % number)])
    if number % 50 == 0:
        stores.flush()
        print("flushed", number, flush=True)
"""


OPENER = """
import sys
from sandq.model.errors import SandqError
from sandq.storage.level_stores import LevelStores
try:
    LevelStores(sys.argv[1])
except SandqError as error:
    print(error.code)
"""


READER = """
import sys, threading
from sandq.model.errors import ClosedError
from sandq.storage import level_stores
stores = level_stores.LevelStores(sys.argv[1])
stores.write([(b"%08d" % number, b"." * 100) for number in range(20_000)])
stores.flush()
snapshot = stores.snapshot()
inside = threading.Semaphore(0)
collect = level_stores._collect
def slowly(rows, *bounds):
    inside.release()
    while rows.valid():
        rows.next()
    return collect(rows, *bounds)
level_stores._collect = slowly
def read():
    try:
        while True:
            snapshot.scan(b"0", b"9")
    except ClosedError:
        sys.stdout.write("closed\\n")
threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
inside.acquire()
stores.close()
for thread in threads:
    thread.join()
"""


def started(code: str, path: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, env=environment)


def test_killed_in_mid_run(tmp_path: Path) -> None:
    path = tmp_path / "stores"
    rng = random.Random(3)
    flushed = -1
    for _ in range(3):
        with started(WRITER, path) as process:
            assert process.stdout is not None
            assert int(process.stdout.readline().split()[1]) > flushed
            for _ in range(rng.randint(1, 12)):
                flushed = int(process.stdout.readline().split()[1])
            process.send_signal(signal.SIGKILL)
            flushed = max([flushed, *(int(line.split()[1]) for line in process.stdout if line.endswith("\n"))])
        found = dict(found_in(path))
        number = int(found.pop(b"n"))
        assert number >= flushed
        assert sorted(found) == [b"k%08d" % n for n in range(number + 1)]


def test_closing_while_a_snapshot_is_being_read(tmp_path: Path) -> None:
    """LevelDB without the guard crashes the process."""
    with started(READER, tmp_path) as process:
        assert process.communicate()[0] == "closed\n" * 2
    assert process.returncode == 0


# Another process


def test_a_directory_in_use(stores: LevelStores, tmp_path: Path) -> None:
    stores.write(numbered(0, 5))
    with pytest.raises(DataDirInUse, match=str(stores.path)):
        LevelStores(stores.path)
    with started(OPENER, stores.path) as process:
        assert process.communicate()[0] == "DATA_DIR_IN_USE\n"
    assert len(list(stores.path.glob("*.log"))) == 1, "the log of the open database is unchanged"
    stores.flush()
    assert everything(stores) == numbered(0, 5)


def test_a_directory_used_by_another_process(tmp_path: Path) -> None:
    with started(WRITER, tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(DataDirInUse, match=rf"another process \(pid {process.pid}\) uses"):
            LevelStores(tmp_path)
        process.kill()
    LevelStores(tmp_path).close()


# Damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """Return a closed directory of three tables, and its rows."""
    path = tmp_path_factory.mktemp("sound") / "stores"
    stores = LevelStores(path)
    for round_ in range(3):
        stores.write(numbered(round_ * 100, round_ * 100 + 100))
        stores.flush()
    rows = everything(stores)
    stores.close()
    assert len(list(path.glob("*.ldb"))) == 3
    return path, rows


def reading(path: Path, rows: list[Row], how: str) -> list[Row]:
    """Read all rows of stores in one of several ways."""
    stores = LevelStores(path)
    try:
        if how == "forwards":
            return everything(stores)
        if how == "backwards":
            return stores.scan(b"", END, reverse=True)[::-1]
        if how == "in pieces":
            found: list[Row] = []
            for at in range(0, 300, 10):
                found += stores.scan(b"%08d" % at, b"%08d" % (at + 10), limit=100)
            return found
        if how == "vacant":
            vacant = stores.vacant([(key, key + b"\0") for key, _ in rows])
            return [row for row, is_vacant in zip(rows, vacant, strict=True) if not is_vacant]
        return [(key, value) for key, _ in rows if (value := stores.get(key)) is not None]
    finally:
        stores.close()


@pytest.mark.parametrize("how", ["forwards", "backwards", "in pieces", "one by one", "vacant"])
@pytest.mark.parametrize("pattern", ["*.ldb", "MANIFEST-*", "CURRENT", "SANDQ-MARK"])
def test_a_flipped_bit_is_refused_or_harmless(
    sound: tuple[Path, list[Row]], tmp_path: Path, pattern: str, how: str
) -> None:
    """Harmless flips are in unused bytes: the padding of LevelDB's table footer, and the empty filter block."""
    path, rows = sound
    rng = random.Random(pattern + how)
    for original in sorted(path.glob(pattern)):
        content = original.read_bytes()
        tried = rng.sample(range(len(content)), min(len(content), 16))
        if original.suffix == ".ldb":
            tried += rng.sample(range(len(content) - 300, len(content)), 8)
        for number, at in enumerate(tried):
            copy = tmp_path / f"{original.name}-{number}"
            shutil.copytree(path, copy)
            flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
            (copy / original.name).write_bytes(content[:at] + flipped + content[at + 1 :])
            try:
                found = reading(copy, rows, how)
            except Corruption as error:
                assert str(copy) in str(error) and error.details["file"]
                if pattern != "CURRENT":
                    assert original.name in str(error), "the message names the file"
            else:
                assert original.suffix == ".ldb", f"a flip at {at} of {original.name} was not seen"
                assert found == rows, f"a flip at {at} of {original.name}"
            shutil.rmtree(copy)


def changed(sound: tuple[Path, list[Row]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound[0], tmp_path / "changed"))


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.ldb"])
def test_missing_file_is_refused_and_nothing_is_recreated(
    sound: tuple[Path, list[Row]], tmp_path: Path, name: str
) -> None:
    path = changed(sound, tmp_path)
    missing = sorted(path.glob(name))[0]
    missing.unlink()
    before = {file.name for file in path.glob("*.ldb")}
    for _ in range(2):
        with pytest.raises(Corruption, match=missing.name.removesuffix(".ldb")):
            LevelStores(path)
    assert {file.name for file in path.glob("*.ldb")} == before
    if name == "CURRENT":
        assert not missing.exists()


@pytest.mark.parametrize("cut", [1, 7, 40, 150, 10_000])
def test_a_manifest_cut_short_below_its_mark_is_refused(
    sound: tuple[Path, list[Row]], tmp_path: Path, cut: int
) -> None:
    """LevelDB would treat it as a partly written end and silently return to an earlier state."""
    path = changed(sound, tmp_path)
    (manifest,) = path.glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes()[:-cut])
    with pytest.raises(Corruption, match=manifest.name):
        LevelStores(path)


def test_a_torn_end_of_the_manifest_behind_the_mark_is_harmless(sound: tuple[Path, list[Row]], tmp_path: Path) -> None:
    path = changed(sound, tmp_path)
    (manifest,) = path.glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes() + b"\x12\x34\x56\x78\x20\0\1 half of a reco")
    assert found_in(path) == sound[1]


def test_an_earlier_manifest_than_the_marked_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stores"
    stores = LevelStores(path)
    stores.write(numbered(0, 5))
    stores.flush()
    stores.close()
    (manifest,) = path.glob("MANIFEST-*")
    old = manifest.read_bytes()
    LevelStores(path).close()
    (path / manifest.name).write_bytes(old)
    (path / "CURRENT").write_bytes(manifest.name.encode() + b"\n")
    with pytest.raises(Corruption, match="CURRENT"):
        LevelStores(path)


def test_a_mark_of_the_manifest_before_is_fine(tmp_path: Path) -> None:
    """The power failed between LevelDB's switch to a new MANIFEST and sandq's mark."""
    path = tmp_path / "stores"
    stores = LevelStores(path)
    stores.write(numbered(0, 5))
    stores.close()
    mark = (path / level_check.MARK).read_bytes()
    LevelStores(path).close()
    (path / level_check.MARK).write_bytes(mark)
    assert found_in(path) == []


def test_an_interrupted_creation_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "stores"
    LevelStores(path).close()
    (manifest,) = path.glob("MANIFEST-*")
    shutil.copy(manifest, tmp_path / "MANIFEST-000001")
    shutil.rmtree(path)
    path.mkdir()
    shutil.move(tmp_path / "MANIFEST-000001", path)
    LevelStores(path).close()


def test_used_directory_is_not_created_again(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(Corruption, match=str(path)):
            LevelStores(path, create=False)
    LevelStores(tmp_path).close()
    LevelStores(tmp_path, create=False).close()


def test_damage_that_a_compaction_meets_ends_the_writing(sound: tuple[Path, list[Row]], tmp_path: Path) -> None:
    path = changed(sound, tmp_path)
    table = sorted(path.glob("*.ldb"))[1]
    content = bytearray(table.read_bytes())
    content[50] ^= 1
    table.write_bytes(content)
    stores = LevelStores(path)
    stores.write([(b"%08d" % number, None) for number in range(300)])
    with pytest.raises(Corruption, match=table.name):
        stores.compact(b"0", b"9")
        stores.flush()
    with pytest.raises(StorageFailed, match=table.name):
        stores.write([(b"a", b"1")])
    stores.close()


def test_damage_that_a_snapshot_meets_names_the_file(sound: tuple[Path, list[Row]], tmp_path: Path) -> None:
    path = changed(sound, tmp_path)
    table = sorted(path.glob("*.ldb"))[1]
    content = bytearray(table.read_bytes())
    content[50] ^= 1
    table.write_bytes(content)
    stores = LevelStores(path)
    with pytest.raises(Corruption, match=table.name):
        stores.snapshot().scan(b"", END)
    stores.close()


# A disk that fails


@contextlib.contextmanager
def largest_file(max_bytes: int) -> Iterator[None]:
    """Let no file of this process grow above a limit: LevelDB's writes fail as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_failed_write_ends_the_writing_and_reads_go_on(stores: LevelStores, tmp_path: Path) -> None:
    stores.write(numbered(0, 10))
    stores.flush()
    with (
        largest_file(4 << 20),
        pytest.raises(StorageFailed, match=f"cannot write {stores.path}.*File too large"),
    ):
        for number in range(10):
            stores.write([(b"big%d" % number, random.Random(number).randbytes(1 << 20))])
    with pytest.raises(StorageFailed, match="do not take anything any more"):
        stores.write([(b"small", b"")])
    with pytest.raises(StorageFailed, match="do not take anything any more"):
        stores.flush()
    assert stores.get(b"00000003") == dict(numbered(0, 10))[b"00000003"]
    assert stores.scan(b"0", b"1") == numbered(0, 10)
    assert found_in(copied(stores.path, tmp_path / "copy")) == numbered(0, 10)


def test_a_flush_that_cannot_write_its_table_fails(stores: LevelStores) -> None:
    """LevelDB reports nothing: CompactRange has no result."""
    stores.write(numbered(0, 10))
    stores.flush()
    stores.write([(b"big%d" % number, random.Random(number).randbytes(1 << 19)) for number in range(4)])
    with largest_file(1 << 20), pytest.raises(StorageFailed):
        stores.flush()
    with pytest.raises(StorageFailed):
        stores.write([(b"a", b"")])


class Lazy:
    """A database whose `compact_range` does nothing, as when it could not open a new log."""

    def __init__(self, db: object) -> None:
        self._db = db

    def compact_range(self, **options: bytes) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


def test_a_flush_that_did_nothing_is_noticed(stores: LevelStores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_stores, "_LOG_REMOVAL_S", 0.01)
    stores._db = Lazy(stores._db)
    stores.write(numbered(0, 10))
    with pytest.raises(StorageFailed, match="did not flush"):
        stores.flush()
    with pytest.raises(StorageFailed):
        stores.write(numbered(0, 10))
