"""Tests of the known peers: durable after `pin`, refused when damaged, complete after every crash."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandq.model.errors import Conflict, Corruption, SandqError, StorageFailed
from sandq.storage import small_file
from sandq.storage.files import RealFiles
from sandq.storage.known_peers import MAGIC, NAME, VERSION, KnownPeers
from sandq.storage.memory_files import Crashed, MemoryFiles
from tests.support.storage.faulty_files import FaultyFiles, Plan


def test_pinned_peer_is_found_again() -> None:
    files = MemoryFiles()
    known = KnownPeers.open(files)
    assert known.get("n2") is None and dict(known.all()) == {}
    assert not files.exists(NAME)
    known.pin("n3", "store-3")
    known.pin("n2", "store-2")
    assert known.get("n2") == "store-2"
    again = KnownPeers.open(files.crash(random.Random(0)))
    assert dict(again.all()) == {"n2": "store-2", "n3": "store-3"}


def test_pin_of_known_store_writes_nothing() -> None:
    files = MemoryFiles()
    known = KnownPeers.open(files)
    known.pin("n2", "store-2")
    operations = files.operations
    known.pin("n2", "store-2")
    assert files.operations == operations


def test_different_store_is_a_conflict() -> None:
    files = MemoryFiles()
    known = KnownPeers.open(files)
    known.pin("n2", "store-2")
    with pytest.raises(Conflict, match=r"n2 returned with another .* \(store other instead of store-2\).* added again"):
        known.pin("n2", "other")
    with pytest.raises(Conflict):
        known.check("n2", "other")
    known.check("n2", "store-2")
    known.check("n3", "store-3")
    assert known.get("n2") == KnownPeers.open(files).get("n2") == "store-2"


@pytest.mark.parametrize("seed", range(30))
def test_pins_survive_crashes(seed: int) -> None:
    rng = random.Random(seed)
    files = MemoryFiles()
    pinned: dict[str, str] = {}
    begun: dict[str, str] = {}
    for _ in range(10):
        files.crash_after(rng.randint(1, 9), inside=bool(rng.randrange(2)))
        try:
            known = KnownPeers.open(files)
            found = dict(known.all())
            assert pinned.items() <= found.items() <= (pinned | begun).items(), f"seed {seed}"
            pinned, begun = found, {}
            while True:
                node, store = f"n{rng.randrange(40)}", f"store-{rng.randrange(10**9)}"
                if node not in pinned:
                    begun = {node: store}
                    known.pin(node, store)
                    pinned[node] = store
        except Crashed:
            files = files.crash(rng)
    assert pinned


def test_a_failed_write_changes_nothing_here() -> None:
    plan = Plan()
    known = KnownPeers.open(FaultyFiles(MemoryFiles(), plan))
    plan.full = True
    with pytest.raises(StorageFailed, match="ENOSPC"):
        known.pin("n2", "store-2")
    assert known.get("n2") is None


def test_pins_of_several_threads_are_all_kept(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)  # its syncs let the other threads run
    known = KnownPeers.open(files)

    def pin(number: int) -> bool:
        try:
            known.pin(f"n{number % 20}", f"store-{number}")
        except SandqError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = [number for number, pinned in enumerate(threads.map(pin, range(160))) if pinned]
    assert len(won) == 20, "each node has one store"
    expected = {f"n{number % 20}": f"store-{number}" for number in won}
    assert dict(known.all()) == dict(KnownPeers.open(files).all()) == expected


def test_every_flipped_bit_is_refused() -> None:
    files = MemoryFiles()
    KnownPeers.open(files).pin("n2", "store-2")
    content = files.read(NAME)
    flipped = [
        content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
        for at in range(len(content))
        for bit in range(8)
    ]
    for wrong in [*flipped, b"", content[:-1], content + b"\0"]:
        files.replace(NAME, wrong)
        with pytest.raises(Corruption, match=NAME) as caught:
            KnownPeers.open(files)
        assert caught.value.details["file"] == NAME


@pytest.mark.parametrize("body", [None, [], ["n2"], {"n2": 5}, {"n2": None}])
def test_complete_file_with_invalid_content_is_refused(body: object) -> None:
    files = MemoryFiles()
    files.replace(NAME, small_file.encode(MAGIC, VERSION, body))
    with pytest.raises(Corruption, match=NAME):
        KnownPeers.open(files)
    files.replace(NAME, small_file.encode(MAGIC, VERSION + 1, {}))
    with pytest.raises(Corruption, match="version 2"):
        KnownPeers.open(files)
