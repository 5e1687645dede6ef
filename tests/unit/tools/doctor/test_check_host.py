"""Tests of the effects of the machine on a node, as `sandq doctor` reports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.tools.doctor import check_host as host

GIB = 1 << 20  # in kB, as /proc/meminfo counts


def meminfo(**values: int) -> str:
    return "".join(f"{name}: {value} kB\n" for name, value in values.items()) + "HugePages_Total: 0\n"


@pytest.mark.parametrize(("source", "state"), [("tsc", "ok"), ("kvm-clock", "ok"), ("hpet", "warning")])
def test_clock_source_is_checked(source: str, state: str) -> None:
    assert host.check_clock_source(source).state == state


@pytest.mark.parametrize(
    ("total", "limit", "state", "words"),
    [
        (8 * GIB, "max", "ok", "this machine has 8.0 GiB"),
        (GIB, "max", "warning", "this machine has 1.0 GiB; limits.memory_bytes is 1.0 GiB"),
        (8 * GIB, str(1 << 30), "warning", "its control group allows 1.0 GiB"),
        (8 * GIB, str(1 << 40), "ok", "this machine has 8.0 GiB"),
    ],
)
def test_memory(total: int, limit: str, state: str, words: str) -> None:
    found = host.check_memory(1 << 30, meminfo(MemTotal=total), limit)
    assert found.state == state and found.found.startswith(words), found
    if state == "warning":
        assert "limits.memory_bytes to 768MiB or less" in found.todo
    assert host.check_memory(1 << 30, "").state == "skipped"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"memory.max": "536870912\n"}, "its control group allows 512.0 MiB"),
        ({"memory/memory.limit_in_bytes": "536870912\n"}, "its control group allows 512.0 MiB"),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "this machine has 8.0 GiB"),
        ({}, "this machine has 8.0 GiB"),
    ],
)
def test_memory_limit_of_container_is_reported(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], words: str
) -> None:
    told = {f"/sys/fs/cgroup/{name}": text.strip() for name, text in files.items()}
    monkeypatch.setattr(host, "_read", told.get)
    assert host.check_memory(1 << 20, meminfo(MemTotal=8 * GIB)).found.startswith(words)


def test_swap() -> None:
    assert host.check_swap(meminfo(SwapTotal=0, SwapFree=0)).state == "ok"
    assert host.check_swap(meminfo(SwapTotal=GIB, SwapFree=GIB - 1000)).state == "ok"
    found = host.check_swap(meminfo(SwapTotal=GIB, SwapFree=GIB // 2))
    assert found.state == "warning" and found.found.startswith("512.0 MiB of 1.0 GiB are used")
    assert host.check_swap("").state == "skipped"


def test_stolen_time() -> None:
    before, after = "cpu  100 0 100 800 0 0 0 10 5 5\ncpu0 1 2", "cpu  150 0 120 820 0 0 0 20 5 5\ncpu0 1 2"
    assert host.stolen_share(before, after) == pytest.approx(0.1)
    assert host.stolen_share(before, before) == 0
    for text in (None, "", "cpu 1 2 3", "cpu  a 0 100 800 0 0 0 10"):
        assert host.stolen_share(before, text) is None
    assert host.check_stolen_time(0.0).state in ("ok", "warning", "skipped")


def test_syncs_that_cannot_be_believed() -> None:
    assert host.check_false_syncs(0.1, "rw,relatime", {}).state == "ok"
    found = host.check_false_syncs(0.1, "rw,nobarrier,relatime", {})
    assert found.state == "failed" and "mounted with nobarrier" in found.found
    assert host.check_false_syncs(0.1, None, {"LD_PRELOAD": "/usr/lib/libeatmydata.so"}).state == "failed"
    found = host.check_false_syncs(0.002, "rw", {})
    assert found.state == "warning" and "one takes 2 us" in found.found


def test_mount_options_are_found() -> None:
    mounts = "/dev/a / ext4 rw 0 0\n/dev/b /srv\\040x ext4 rw,barrier=0 0 0\n/dev/c / xfs ro 0 0\nbroken"
    assert (host.mount_options("/srv x", mounts), host.mount_options("/", mounts)) == ("rw,barrier=0", "ro")
    assert host.mount_options("/nowhere", mounts) is None
    odd = "/dev/a /srv/d\u00e9p\u00f4t\\134u ext4 rw,nobarrier 0 0\n/dev/b /m\udcff ext4 ro 0 0\n"
    assert (host.mount_options("/srv/d\u00e9p\u00f4t\\u", odd), host.mount_options("/m\udcff", odd)) == (
        "rw,nobarrier",
        "ro",
    )


def test_a_mount_point_that_is_no_text_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_bytes(b"/dev/a /caf\xe9 ext4 rw 0 0\n")
    assert host._read(str(tmp_path / "mounts")) == "/dev/a /caf\udce9 ext4 rw 0 0"
