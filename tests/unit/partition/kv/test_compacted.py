"""Tests of keys and values: conditions, times to live, and the result of compaction."""

from __future__ import annotations

import itertools

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import InvalidRequest
from sandq.model.names import COMPACTED
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.kv import compaction, key_table
from sandq.partition.kv.key_table import Value
from sandq.partition.kv.writes import ABSENT, CHANGED, NO_VERSION
from tests.support.partition.bench import T
from tests.support.partition.key_bench import KeyBench, writes_of

HOUR = 3_600_000
DAY = 24 * HOUR


def test_last_write_of_key_wins() -> None:
    bench = KeyBench()
    first = bench.set("a", "1")
    second = bench.set("a", "2", at=5)
    assert bench.get("a") == "2" and first < second
    bench.set("a", None, at=6)
    assert bench.get("a") is None and bench.all() == {}
    bench.write(("b", "1"), ("b", "2"), ("c", ""), at=7)
    assert bench.all() == {"b": "2", "c": ""}
    assert (bench.machine.keys.live, bench.status().messages) == (2, 6)


def test_a_value_has_its_version_headers_and_time() -> None:
    bench = KeyBench()
    base, _ = bench.write(("a", "x"), ("b", "y"), headers=[b"\x80", None], ttls=[1000, None], at=3)
    rows = [bench.machine.keys.get(key, T, bench.view) for key in (b"a", b"b")]
    assert [Value.load(row) for row in rows if row] == [
        Value(base, b"x", b"\x80", T + 1003),
        Value(offsets.shift(base, 1), b"y", None, 0),
    ]


def test_conditions() -> None:
    bench = KeyBench()
    stored, version = bench.set_if("a", "1", ABSENT)
    assert stored
    assert bench.set_if("a", "2", ABSENT) == (False, version)
    assert bench.set_if("a", "2", NO_VERSION) == (False, version)
    stored, newer = bench.set_if("a", "2", version)
    assert stored and newer > version
    assert bench.set_if("a", "3", version) == (False, newer)
    assert bench.set_if("a", None, newer)[0] and bench.get("a") is None
    assert bench.set_if("a", "4", newer) == (False, NO_VERSION), "a version must always name only one value"


def test_conditions_of_a_batch_are_checked_one_by_one_in_order() -> None:
    bench = KeyBench()
    old = bench.set("a", "0")
    stored = bench.write(
        ("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("c", "1"), expected=[old, old, ABSENT, None, old]
    )
    assert stored.refused == [(1, CHANGED), (4, CHANGED)]
    assert bench.all() == {"a": "1", "b": "2"}
    versions = [stored.offsets[at : at + 16] for at in range(0, 80, 16)]
    assert versions[1] == versions[0] and versions[4] == NO_VERSION
    assert [(key, value) for _, key, value in bench.log()] == [("a", "0"), ("a", "1"), ("b", "1"), ("b", "2")]


def test_a_conditioned_write_that_is_sent_again_has_its_first_answer() -> None:
    bench = KeyBench()
    batch = writes_of([("a", "1"), ("b", "1")], expected=[ABSENT, NO_VERSION])
    sent = c.Append(batch, 7, 1, 1, split=True)
    first, again = bench.apply(0, sent)[0], bench.apply(1, sent)[0]
    assert first == again and first.refused == [(1, CHANGED)]
    assert bench.status().messages == 1


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({Column.VALUE: [b"x"]}, "has a key"),
        ({Column.VALUE: [b"x"], Column.KEY: [None]}, "has a key"),
        ({Column.VALUE: [b"x"], Column.KEY: [b""]}, "has a key"),
        ({Column.VALUE: [b"x"], Column.KEY: [b"a"], Column.DELIVER_MS: [T]}, "deliver_ms"),
        ({Column.VALUE: [b"x"], Column.KEY: [b"a"], Column.UNIQUE_KEY: [b"u"]}, "unique_key"),
        ({Column.VALUE: [b"x"], Column.KEY: [b"a"], Column.EXPECTED_VERSION: [b"short"]}, "16 bytes"),
    ],
)
def test_invalid_write_is_refused(columns: dict[int, list[object]], says: str) -> None:
    bench = KeyBench()
    result = bench.apply(0, c.Append(encode(columns)))[0]  # type: ignore[arg-type]
    assert isinstance(result, InvalidRequest) and says in result.message
    assert bench.status().messages == 0


def test_cancel_move_and_jobs_are_refused() -> None:
    bench = KeyBench()
    version = bench.set("a", "1")
    target = (c.TARGET_ID, version)
    refusals = bench.apply(1, c.Cancel([target]), c.Move([(target, 5, True)]), c.StartJob(bytes(16), "cancel", {}))
    assert all(isinstance(refusal, InvalidRequest) for refusal in refusals) and bench.get("a") == "1"


class TestTimeToLive:
    def test_expired_value_is_gone_and_a_deletion_is_written(self) -> None:
        bench = KeyBench()
        bench.set("a", "1", ttl=1000)
        bench.set("b", "1")
        assert bench.get("a", at=999) == "1" and bench.get("a", at=1000) is None
        assert bench.all(at=1000) == {"b": "1"}
        assert bench.status().upkeep_ms == T + 1000
        assert bench.set_if("a", "2", ABSENT, at=1000)[0], "an expired key is absent even before its removal"
        bench.set("a", "3", ttl=1000, at=2000)
        bench.trim(at=3000)
        assert [(key, value) for _, key, value in bench.log()][-1] == ("a", None)
        assert bench.machine.keys.live == 1

    def test_rewritten_key_loses_its_ttl(self) -> None:
        bench = KeyBench()
        bench.set("a", "1", ttl=1000)
        bench.set("a", "2", at=500)
        bench.trim(at=2000)
        assert bench.get("a", at=2000) == "2" and len(bench.log()) == 2

    def test_ttl_of_topic_applies_to_keys(self) -> None:
        bench = KeyBench(ttl="1s")
        bench.set("a", "1")
        bench.set("b", "1", ttl=5000)
        assert bench.all(at=1000) == {"b": "1"}

    def test_many_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sandq.partition.kv.key_table.SWEEP_KEYS", 3)
        bench = KeyBench()
        bench.write(*[(f"k{n}", "x") for n in range(10)], ttls=[1000 + n % 3 for n in range(10)])
        bench.trim(at=1001)
        assert sorted(bench.all(at=1001)) == ["k2", "k5", "k8"] == sorted(bench.all(at=0))
        bench.trim(at=1002)
        assert bench.all(at=0) == {} and bench.machine.keys.next_expiry_ms is None


class TestScan:
    def test_pages(self) -> None:
        bench = KeyBench()
        bench.write(*[(f"k{n:02}", "x" * n) for n in range(20)])
        found, start = [], b""
        while start is not None:
            page, start = bench.scan(start, b"k15", limit=4, max_bytes=1 << 20)
            found += [key for key, _ in page]
        assert found == [b"k%02d" % n for n in range(15)]

    def test_expired_keys_are_skipped_and_the_page_continues(self) -> None:
        bench = KeyBench()
        bench.write(*[(f"k{n}", "x") for n in range(6)], ttls=[1, 1, 1, None, 1, None])
        page, start = bench.scan(b"", None, limit=3, max_bytes=1 << 20, at=1)
        assert page == [] and start is not None
        page, start = bench.scan(start, None, limit=3, max_bytes=1 << 20, at=1)
        assert [key for key, _ in page] == [b"k3", b"k5"]

    def test_a_page_is_read_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A page in parts must end where a page in one read ends."""
        bench = KeyBench()
        bench.write(*[(f"k{n:02}", "x" * 100 * (n % 7)) for n in range(40)])
        for limit, max_bytes in itertools.product([1, 5, 39, 40, 41, 1000], [1, 700, 1 << 20]):
            monkeypatch.setattr(key_table, "SCAN_ROWS", 1000)
            monkeypatch.setattr(key_table, "SCAN_BYTES", 1 << 30)
            whole = bench.scan(b"k02", None, limit=limit, max_bytes=max_bytes)
            for rows, size in [(1, 1 << 20), (3, 1 << 20), (1000, 500)]:
                monkeypatch.setattr(key_table, "SCAN_ROWS", rows)
                monkeypatch.setattr(key_table, "SCAN_BYTES", size)
                parts = bench.machine.keys.scan(
                    b"k02", None, limit=limit, max_bytes=max_bytes, now_ms=T, view=bench.view
                )
                sizes = [sum([len(row) for _, row in part[:-1]]) for part, _ in parts]
                assert max(sizes) < size
                assert bench.scan(b"k02", None, limit=limit, max_bytes=max_bytes) == whole


class TestCompaction:
    def compact(self, bench: KeyBench, at: int = HOUR) -> None:
        bench.trim(at=at)

    def test_last_write_of_each_key_is_kept(self) -> None:
        bench = KeyBench()
        for n in range(50):
            bench.write(*[(f"k{key}", f"{n}") for key in range(4)], at=n)
        versions = [offset for offset, _, _ in bench.log()][-4:]
        self.compact(bench)
        assert bench.log() == [(version, f"k{key}", "49") for key, version in enumerate(versions)]
        assert bench.all() == dict.fromkeys(("k0", "k1", "k2", "k3"), "49")
        assert (bench.status().messages, bench.machine.keys.live) == (4, 4)
        assert bench.status().upkeep_ms is None, "no compaction work is left"

    def test_rest_of_a_batch_keeps_its_offsets(self) -> None:
        bench = KeyBench()
        base, _ = bench.write(("a", "1"), ("b", "1"), ("c", "1"), ("d", "x" * 10_000))
        bench.write(("a", "2"), ("c", "2"), at=1)
        self.compact(bench)
        assert [(offset, key) for offset, key, _ in bench.log()][:2] == [
            (offsets.shift(base, 1), "b"),
            (offsets.shift(base, 3), "d"),
        ]
        bench.set("d", "2", at=HOUR)
        self.compact(bench, at=2 * HOUR)
        assert [key for _, key, _ in bench.log()] == ["b", "a", "c", "d"]
        assert not bench.rows(b"p"), "no payload of removed messages is left"

    def test_recent_writes_are_kept_for_the_history(self) -> None:
        bench = KeyBench(history="10m")
        for n in range(5):
            bench.set("a", str(n), at=n * 300_000)
        bench.trim(at=1_250_000)
        assert [value for _, _, value in bench.log()] == ["3", "4"]
        bench.trim(at=HOUR)
        assert [value for _, _, value in bench.log()] == ["4"]

    def test_a_deletion_stays_for_its_time(self) -> None:
        bench = KeyBench(tombstone_retention="2h")
        bench.set("a", "1")
        gone = bench.set("a", None, at=1000)
        bench.set("b", "1", at=2000)
        self.compact(bench)
        assert [(key, value) for _, key, value in bench.log()] == [("a", None), ("b", "1")]
        assert bench.machine.compactor.forgotten == offsets.FIRST
        bench.trim(at=3 * HOUR)
        assert [(key, value) for _, key, value in bench.log()] == [("b", "1")]
        assert bench.machine.compactor.forgotten == gone

    def test_a_deletion_before_another_write_goes_at_once(self) -> None:
        bench = KeyBench()
        bench.set("a", None)
        bench.set("a", "1", at=1)
        self.compact(bench)
        assert [(key, value) for _, key, value in bench.log()] == [("a", "1")]

    def test_groups_go_on(self) -> None:
        """A lagging group gets the remaining messages. A group with leases keeps their messages until it settles
        them."""
        bench = KeyBench(lease="12h")
        for group in ("slow", "holds", "done"):
            bench.open(group)
        for n in range(10):
            bench.write(("a", f"a{n}"), ("b", f"b{n}"), at=n)
        (held,) = bench.lease(3, group="holds", at=10, ms=43_200_000)
        (done,) = bench.lease(group="done", at=10)
        bench.ack(done.token, at=10)
        self.compact(bench)
        assert bench.values([held]) == ["a0", "b0", "a1"]
        assert bench.values(bench.lease(group="slow", at=HOUR)) == ["a0", "b0", "a1", "b1", "a9", "b9"]
        assert bench.lease(group="done", at=HOUR) == []
        statuses = {group.name: group for group in bench.status().groups}
        assert statuses["done"].ready == 0
        bench.ack(held.token, at=HOUR)
        bench.set("c", "1", at=HOUR)
        assert bench.values(bench.lease(group="holds", at=HOUR)) == ["b1", "a9", "b9", "1"]

    def test_few_obsolete_values_are_removed_from_a_large_batch(self) -> None:
        bench = KeyBench()
        bench.write(*[(f"k{n}", "1") for n in range(20)])
        bench.write(*[(f"k{n}", "2") for n in range(2)], at=1)
        self.compact(bench)
        assert [(key, value) for _, key, value in bench.log()] == [
            *((f"k{n}", "1") for n in range(2, 20)),
            ("k0", "2"),
            ("k1", "2"),
        ]

    def replayed_state(self, bench: KeyBench) -> dict[str, str]:
        """Return the state of a reader that has read the whole log."""
        replayed = {key: value for _, key, value in bench.log()}
        return {key: value for key, value in replayed.items() if value is not None}

    def test_deletion_is_removed_after_the_deleted_values(self) -> None:
        """Otherwise a reader from the beginning would see the value but not its deletion."""
        bench = KeyBench(tombstone_retention="2h")
        bench.write(*[(f"k{n}", "1") for n in range(20)])
        bench.set("k0", None, at=1)
        self.compact(bench, at=4 * HOUR)
        assert self.replayed_state(bench) == bench.all() and "k0" not in bench.all()

    def test_deletion_stays_while_a_reader_holds_the_deleted_value(self) -> None:
        bench = KeyBench(tombstone_retention="2h", lease="12h")
        bench.open("g")
        bench.write(("a", "1"), ("b", "1"))
        (held,) = bench.lease(1, at=1, ms=43_200_000)
        bench.set("a", None, at=2)
        self.compact(bench, at=4 * HOUR)
        assert [(key, value) for _, key, value in bench.log()] == [("a", "1"), ("b", "1"), ("a", None)]
        due_ms = bench.status().upkeep_ms
        assert due_ms is not None and due_ms >= T + 4 * HOUR + 60_000, (
            "compaction must not run again and again meanwhile"
        )
        bench.restart()
        bench.ack(held.token, at=5 * HOUR)
        self.compact(bench, at=8 * HOUR)
        assert [(key, value) for _, key, value in bench.log()] == [("b", "1"), ("a", None)], (
            "the value was in use until now"
        )
        self.compact(bench, at=10 * HOUR + 60_000)
        assert [(key, value) for _, key, value in bench.log()] == [("b", "1")]

    def test_reader_that_began_before_a_compaction_sees_the_deletion(self) -> None:
        bench = KeyBench(tombstone_retention="1h")
        bench.set("a", "1")
        bench.set("a", None, at=1)
        bench.set("b", "1", at=2)
        reader = bench.log()[0]  # read at 20 h, by a slow reader
        assert reader[1:] == ("a", "1")
        self.compact(bench, at=20 * HOUR)
        assert [(key, value) for _, key, value in bench.log()] == [("a", None), ("b", "1")], "the old deletion stays"
        self.compact(bench, at=20 * HOUR + 3_500_000)
        assert [key for _, key, _ in bench.log()] == ["a", "b"]
        self.compact(bench, at=21 * HOUR + 100_000)
        assert [key for _, key, _ in bench.log()] == ["b"]

    def test_compaction_starts_in_time_with_few_writes(self) -> None:
        bench = KeyBench(history="1m")
        for n in range(1200):
            bench.set("a", str(n), at=n * 2000)
            bench.trim(at=n * 2000)
        assert bench.status().messages < 400, "40 minutes, a write every two seconds"

    def test_compaction_starts_before_the_log_is_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compaction, "BYTES_LEAST", 100_000)
        bench = KeyBench(history="0s")
        for n in range(100):
            bench.set("a", "x" * 10_000, at=n * 1000)
            bench.trim(at=n * 1000)
        assert bench.status().bytes < 150_000

    def test_few_writes_start_no_compaction_of_many_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compaction, "REST_MS", 1000)
        bench = KeyBench(history="0s")
        bench.write(*[(f"k{n}", "1") for n in range(1000)])
        bench.set("a", "1", at=1)
        bench.set("a", "2", at=2)
        self.compact(bench, at=20_000)
        assert bench.status().messages == 1001
        bench.set("a", "3", at=30_000)
        self.compact(bench, at=60_000)
        assert bench.status().messages == 1002
        due_ms = bench.status().upkeep_ms
        assert due_ms is not None and due_ms > T + 1_000_000, "and compaction does not run again and again"
        self.compact(bench, at=1_100_000)
        assert bench.status().messages == 1001

    def test_compaction_without_obsolete_values_does_nothing(self) -> None:
        bench = KeyBench()
        bench.write(("a", "1"), ("b", "1"))
        for at in (5000, 6000, 61_000, 120_000, HOUR):
            bench.upkeep(at=at)
        assert bench.status().upkeep_ms is None, "each message is the last of its key"
        bench.set("a", "2", at=2 * HOUR)
        self.compact(bench, at=3 * HOUR)
        assert bench.status().upkeep_ms is None and bench.status().messages == 2

    def test_changed_settings_are_applied_immediately(self) -> None:
        bench = KeyBench(history="30d", tombstone_retention="30d")
        for n in range(20):
            bench.set("a", str(n), at=n)
        bench.set("b", None, at=30)
        self.compact(bench, at=HOUR)
        assert bench.status().messages == 21
        settings = parse_settings({"history": "0s", "tombstone_retention": "0s"}, COMPACTED).record()
        bench.apply(HOUR + 50_000, c.Configure(settings))
        self.compact(bench, at=HOUR + 51_000)
        assert [(key, value) for _, key, value in bench.log()] == [("a", "19")]

    def test_bounded_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compaction, "STEP_MESSAGES", 3)
        monkeypatch.setattr(compaction, "STEP_FACTOR", 0)
        bench = KeyBench()
        for n in range(50):
            bench.set("a", str(n), at=n)
        steps = 0
        while bench.status().messages > 1:
            before = bench.status().messages
            bench.upkeep(at=HOUR)
            steps += 1
            assert before - bench.status().messages <= 3
        assert steps >= 16
        bench.restart()
        self.compact(bench, at=HOUR)
        assert [value for _, _, value in bench.log()] == ["49"]

    def test_compaction_keeps_up_with_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"STEP_MESSAGES": 3, "STEP_ROWS": 2, "NEW_LEAST": 20, "LOOK_MS": 1}.items():
            monkeypatch.setattr(compaction, name, value)
        bench = KeyBench(history="0s")
        left = []
        for n in range(100):
            for _ in range(10):
                bench.write(("a", str(n)), ("b", str(n)), at=n * 1000)
            bench.upkeep(at=n * 1000)
            left.append(bench.status().messages)
        assert max(left[:10]) >= max(left[20:]), "one step for so many writes is enough"
        monkeypatch.setattr(compaction, "STEP_MOST", 5)
        bench.write(*[("a", "1")] * 100, at=101_000)
        bench.upkeep(at=200_000)
        before = bench.status().messages
        bench.upkeep(at=200_000)
        assert before - bench.status().messages <= 100, "one row at a time, for any write"

    def test_compaction_under_load_waits_until_it_is_worth_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compaction, "NEW_LEAST", 20)
        bench = KeyBench(history="0s")
        left = []
        for n in range(120):
            bench.set(f"k{n % 2}", str(n), at=n * 1000)
            bench.trim(at=n * 1000)
            left.append(bench.status().messages)
        assert max(left) <= 26 and min(left[30:]) <= 4


def test_only_one_deletion_per_key_is_kept() -> None:
    bench = KeyBench()
    for at in range(20):
        bench.set("lock", "mine", at=2 * at)
        bench.set("lock", None, at=2 * at + 1)
    bench.set("other", None, at=50)
    assert bench.machine.keys.deletions == 2
    for at in range(0, 40_000, 1000):
        bench.upkeep(at=HOUR + at)
    assert [(key, value) for _, key, value in bench.log()] == [("lock", None), ("other", None)]
    bench.restart()
    assert bench.machine.keys.deletions == 2
    bench.set("lock", "mine", at=2 * HOUR)
    assert bench.machine.keys.deletions == 1
    for at in range(0, 40_000, 1000):
        bench.upkeep(at=30 * HOUR + at)
    assert [key for _, key, _ in bench.log()] == ["lock"] and bench.machine.keys.deletions == 0


def test_a_scan_counts_keys() -> None:
    bench = KeyBench()
    keys = [f"{n:03}" + "k" * 10_000 for n in range(600)]
    bench.write(*[(key, "v") for key in keys])
    found: list[str] = []
    start: bytes | None = b""
    while start is not None:
        page, start = bench.scan(start, None, limit=1000, max_bytes=100_000)
        assert (page or start is None) and sum([len(key) + len(row) for key, row in page[:-1]]) < 100_000
        found += [key.decode() for key, _ in page]
    assert found == keys


def test_keys_that_expire_together_are_deleted_gradually() -> None:
    bench = KeyBench()
    keys = [f"{n:03}" + "k" * 60_000 for n in range(200)]
    for key in keys:
        bench.set(key, "v", ttl=1000)
    before = bench.status().messages
    bench.upkeep(at=2000)
    assert 0 < bench.status().messages - before < 80, "as many keys as 4 MiB hold"
    for _ in range(5):
        bench.upkeep(at=2000)
    assert bench.all() == {} and bench.status().messages == before + 200


def test_deleted_key_like_an_offset_is_no_offset() -> None:
    """Rows of deleted keys use a tag that belongs to overlay rows in other topics."""
    bench = KeyBench()
    bench.open()
    base = bench.write(("a", "1"), ("b", "2"), ("c", "3"))[0]
    between = offsets.shift(base, 1)
    bench.apply(0, c.Append(encode({Column.KEY: [between], Column.VALUE: [b"x"]})))
    bench.apply(0, c.Append(encode({Column.KEY: [between], Column.VALUE: [None]})))
    assert bench.rows(b"y") != []
    bench.restart()
    (lease,) = bench.lease(3)
    assert bench.values([lease]) == ["1", "2", "3"]
