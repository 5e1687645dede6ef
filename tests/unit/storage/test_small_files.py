"""Tests of pointer and identity files: durable when reported, refused when damaged, complete after every crash."""

from __future__ import annotations

import random

import pytest

from sandq.model.errors import Corruption, StartupError, StorageFailed
from sandq.storage import identity, small_file
from sandq.storage.memory_files import Crashed, MemoryFiles
from sandq.storage.pointers import Pointers, StorePointer
from tests.support.storage.faulty_files import FaultyFiles, Plan


def test_pointers_are_found_again() -> None:
    files = MemoryFiles()
    pointers = Pointers.open(files)
    assert pointers.all() == [] and pointers.get(1) is None
    assert list(pointers.mint(3)) == [1, 2, 3]
    nine = StorePointer(9, 1, 1, 40, 3, ("a#1",), ("b#2",))
    five = StorePointer(5, 2, 3)
    pointers.update(put=[nine, five])
    again = Pointers.open(files.crash(random.Random(0)), create=False)
    assert again.all() == [five, nine]
    again.update(drop=[9, 77], put=[StorePointer(5, 3, 2)])
    assert again.all() == [StorePointer(5, 3, 2)]
    assert list(again.mint()) == [4]


def test_a_store_must_be_minted() -> None:
    pointers = Pointers.open(MemoryFiles())
    with pytest.raises(ValueError, match="store 1 was not minted"):
        pointers.update(put=[StorePointer(1, 1, 1)])


def test_pointers_of_a_used_directory_do_not_go_missing() -> None:
    files = MemoryFiles()
    with pytest.raises(Corruption, match="stores is missing"):
        Pointers.open(files, create=False)
    Pointers.open(files)
    Pointers.open(files, create=False)


@pytest.mark.parametrize("seed", range(10))
def test_a_number_is_never_minted_twice(seed: int) -> None:
    rng = random.Random(seed)
    files, used = MemoryFiles(), set()
    for _ in range(20):
        files.crash_after(rng.randint(1, 12), inside=bool(rng.randrange(2)))
        try:
            pointers = Pointers.open(files)
            while True:
                number = pointers.mint()[0]
                assert number not in used, f"seed {seed}"
                used.add(number)
        except Crashed:
            files = files.crash(rng)


def test_a_failed_replace_changes_nothing_here() -> None:
    plan = Plan()
    pointers = Pointers.open(FaultyFiles(MemoryFiles(), plan))
    pointers.mint()
    plan.full = True
    with pytest.raises(StorageFailed, match="ENOSPC"):
        pointers.update(put=[StorePointer(1, 1, 1)])
    assert pointers.all() == []


@pytest.mark.parametrize("name", ["stores", "identity"])
def test_every_flipped_bit_is_refused(name: str) -> None:
    files = MemoryFiles()
    identity.open_identity(files, "n1")
    pointers = Pointers.open(files)
    pointers.mint()
    pointers.update(put=[StorePointer(1, 1, 1, 5, 5, ("a#1",))])
    content = files.read(name)
    flipped = [
        content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
        for at in range(len(content))
        for bit in range(8)
    ]
    for wrong in [*flipped, b"", content[:-1], content + b"\0"]:
        files.replace(name, wrong)
        with pytest.raises(Corruption, match=name) as caught:
            Pointers.open(files) if name == "stores" else identity.load(files)
        assert caught.value.details["file"] == name


def test_complete_file_with_invalid_content_is_refused() -> None:
    files = MemoryFiles()
    files.replace("stores", small_file.encode(b"SANDQPTR", 1, [1, [[1, 2]]]))
    with pytest.raises(Corruption, match="stores"):
        Pointers.open(files)
    files.replace("stores", small_file.encode(b"SANDQPTR", 2, [1, []]))
    with pytest.raises(Corruption, match="version 2"):
        Pointers.open(files)
    files.replace("identity", small_file.encode(b"SANDQIDN", identity.VERSION, []))
    with pytest.raises(Corruption, match="identity"):
        identity.load(files)


def test_identity_of_another_version_is_refused_as_such() -> None:
    files = MemoryFiles()
    files.replace("identity", small_file.encode(b"SANDQIDN", 1, {}))
    with pytest.raises(StartupError, match=r"by a development version of sandq .*: give the node") as old:
        identity.load(files)
    assert type(old.value) is StartupError and old.value.details["found"] == 1
    files.replace("identity", small_file.encode(b"SANDQIDN", identity.VERSION + 1, {}))
    with pytest.raises(StartupError, match=r"by a newer version of sandq .*: start that version"):
        identity.load(files)
    files.replace("identity", files.read("identity")[:-1])
    with pytest.raises(Corruption, match="identity is damaged"):
        identity.load(files)


def test_identity_is_created_once() -> None:
    files = MemoryFiles()
    assert identity.load(files) is None
    first = identity.open_identity(files, "n1", mint=lambda: "store-uuid")
    assert first == identity.Identity("n1", "store-uuid", None)
    files = files.crash(random.Random(0))
    assert identity.open_identity(files, "n1", mint=lambda: "another") == first
    with pytest.raises(StartupError, match=r"belongs to node 'n1', not to 'n2'"):
        identity.open_identity(files, "n2")


def test_a_directory_joins_one_cluster() -> None:
    files = MemoryFiles()
    first = identity.open_identity(files, "n1")
    joined = identity.join_cluster(files, first, "c1")
    assert identity.load(files.crash(random.Random(0))) == joined
    assert identity.join_cluster(files, joined, "c1") == joined
    with pytest.raises(StartupError, match="belongs to cluster c1, not to c2"):
        identity.join_cluster(files, joined, "c2")
    assert len(identity.new_uuid()) == 36
