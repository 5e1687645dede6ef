"""Random commands on the compacted partition are compared with a dict: values, conditions, ttls, groups, compaction.

Two partitions apply the same entries. The first stays in memory; the second is loaded from its rows at times. Both must
give the same answers and write the same rows."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition.kv import compaction, key_table
from sandq.partition.kv.writes import ABSENT, NO_VERSION
from sandq.partition.log.appends import Stored
from sandq.partition.reader import reader
from tests.support.examples import examples
from tests.support.partition.bench import T
from tests.support.partition.key_bench import KeyBench, writes_of
from tests.support.partition.spilling import spilling_by

KEYS = "abcd"
GROUPS = ("g", "h")
SMALL = (
    (compaction, "STEP_ROWS", 3),
    (compaction, "STEP_MESSAGES", 5),
    (compaction, "NEW_LEAST", 6),
    (key_table, "SWEEP_KEYS", 2),
    (reader, "HEAD_ENTRIES", 2),
)
numbers = st.integers(0, 1 << 20)
writes = st.lists(
    st.tuples(st.sampled_from(KEYS), st.booleans(), st.sampled_from([None, None, 1, 3000, 90_000])),
    min_size=1,
    max_size=6,
)


class Walk(RuleBasedStateMachine):
    topic: dict[str, Any]

    @initialize(
        restarts=st.sampled_from([1, 2, 5, 1 << 30]), look_ahead=st.sampled_from([2, 2048]), spills=st.integers(0, 2)
    )
    def begin(self, restarts: int, look_ahead: int, spills: int) -> None:
        self.patches = ExitStack()
        self.patches.enter_context(spilling_by(spills))
        for module, name, value in SMALL:
            self.patches.enter_context(patch.object(module, name, value))
        self.patches.enter_context(patch.object(reader, "LOOK_AHEAD_ENTRIES", look_ahead))
        self.bench, self.reloaded, self.restarts = KeyBench(**self.topic), KeyBench(**self.topic), restarts
        self.at = self.made = 0
        self.history: list[tuple[bytes, str, str | None]] = []
        """(version, key, value) of each stored write, in order."""
        self.live: dict[str, tuple[bytes, str, int | None]] = {}
        """Key -> version, value, and end of its ttl (ms after T)."""
        self.held: dict[int, list[str | None]] = {}
        self.last_seen: dict[str, dict[str, bytes]] = {}
        """By group: the last delivered version of each key, without redeliveries."""

    def teardown(self) -> None:
        self.patches.close()

    @rule()
    def evict(self) -> None:
        for one in self.reloaded.machine.groups.readers():
            one.evict()

    def apply(self, command: c.Command) -> Any:
        if self.bench.index % self.restarts == 0:
            self.reloaded.restart()
        result, other = self.bench.apply(self.at, command)[0], self.reloaded.apply(self.at, command)[0]
        assert repr(result) == repr(other), "a partition loaded from its rows gives another answer"
        assert self.bench.everything() == self.reloaded.everything()
        return result

    # -- writing --------------------------------------------------------------------------------------------------

    def present(self, key: str) -> bytes | None:
        found = self.live.get(key)
        return None if found is None or (found[2] is not None and found[2] <= self.at) else found[0]

    def stored(self, version: bytes, key: str, value: str | None, ttl: int | None) -> None:
        self.history.append((version, key, value))
        if value is None:
            self.live.pop(key, None)
        else:
            ttl = self.bench.settings["key_ttl_ms"] if ttl is None else ttl
            self.live[key] = (version, value, None if ttl is None else self.at + ttl)

    def named(self, given: list[tuple[str, bool, int | None]]) -> list[tuple[str, str | None, int | None]]:
        found = []
        for key, deletes, ttl in given:
            self.made += 1
            found.append((key, None if deletes else f"v{self.made}", ttl))
        return found

    @rule(given=writes)
    def write(self, given: list[tuple[str, bool, int | None]]) -> None:
        made = self.named(given)
        base, count = self.apply(c.Append(writes_of([each[:2] for each in made], ttls=[each[2] for each in made])))
        assert count == len(made)
        for at, each in enumerate(made):
            self.stored(key_version(base, at), *each)

    @rule(given=writes, expected=st.lists(st.sampled_from(["now", "absent", "old", "any"]), min_size=6, max_size=6))
    def write_if(self, given: list[tuple[str, bool, int | None]], expected: list[str]) -> None:
        made = self.named(given)
        old = self.history[0][0] if self.history else NO_VERSION
        kinds = {"now": None, "absent": ABSENT, "old": old, "any": None}
        wanted = [
            (self.present(key) or ABSENT) if kind == "now" else kinds[kind]
            for (key, _, _), kind in zip(made, expected, strict=False)
        ]
        batch = writes_of([each[:2] for each in made], ttls=[each[2] for each in made], expected=wanted)
        result = self.apply(c.Append(batch, split=True))
        assert isinstance(result, Stored)
        refused = dict(result.refused)
        for at, (each, condition) in enumerate(zip(made, wanted, strict=True)):
            present = self.present(each[0])
            version = result.offsets[16 * at : 16 * at + 16]
            if condition is not None and condition != (present or ABSENT):
                assert at in refused and version == (present or NO_VERSION)
            else:
                assert at not in refused
                self.stored(version, *each)

    # -- time -----------------------------------------------------------------------------------------------------

    @rule(step=st.sampled_from([0, 1, 500, 3000, 8000, 61_000, 600_000]))
    def wait(self, step: int) -> None:
        self.at += step

    @rule(times=st.sampled_from([1, 1, 3, 50]))
    def upkeep(self, times: int) -> None:
        for _ in range(times):
            due_ms = self.bench.status().upkeep_ms
            if due_ms is None or due_ms > T + self.at:
                return
            before = {key for _, key, _ in self.bench.log()}
            self.apply(c.Upkeep())
            after = self.bench.log()
            known = {version for version, _, _ in self.history}
            for version, key, value in after:
                if version not in known:  # the partition appends a message that deletes an expired key
                    assert value is None and self.present(key) is None and key in before
                    self.history.append((version, key, None))
                    self.live.pop(key, None)

    # -- groups ---------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(GROUPS))
    def open_group(self, name: str) -> None:
        if name not in self.last_seen:
            self.apply(c.OpenGroup(name, "earliest"))
            self.last_seen[name] = {}

    @precondition(lambda self: self.last_seen)
    @rule(number=numbers, limit=st.integers(1, 6))
    def lease(self, number: int, limit: int) -> None:
        name = list(self.last_seen)[number % len(self.last_seen)]
        written = {version: (key, value) for version, key, value in self.history}
        for lease in self.apply(c.Lease(name, T + self.at, (c.Grant("c", limit, 30_000),))):
            self.held[lease.token] = []
            for message in self.bench.messages(lease):
                key, value = message.fields[Column.KEY].decode(), message.fields.get(Column.VALUE)
                text = None if value is None else value.decode()
                assert written[message.offset] == (key, text)
                self.held[lease.token].append(text)
                if lease.attempt == 1:
                    assert self.last_seen[name].get(key, b"") < message.offset, "each key's versions in their order"
                    self.last_seen[name][key] = message.offset

    @precondition(lambda self: self.held)
    @rule(number=numbers, how=st.sampled_from(["ack", "nack", "look"]))
    def settle(self, number: int, how: str) -> None:
        token = list(self.held)[number % len(self.held)]
        live = self.bench.machine.leases.by_token.get(token)
        if live is not None and not live.ended and how == "look":
            texts = [
                m.fields[Column.VALUE].decode() if Column.VALUE in m.fields else None for m in self.bench.messages(live)
            ]
            assert texts == self.held[token], "leased messages do not change"
            return
        del self.held[token]
        self.apply(c.Ack([(token, None)]) if how == "ack" else c.Nack([(token, None, 0, None)]))

    @rule()
    def expire(self) -> None:
        self.apply(c.Expire())

    # -- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def keys_have_last_written_values(self) -> None:
        if not hasattr(self, "live"):
            return
        expected = {key: value for key, (_, value, _) in self.live.items() if self.present(key) is not None}
        assert self.bench.all(self.at) == expected
        table = self.bench.machine.keys
        rows = self.bench.rows(key_table.VALUE)
        assert (table.live, table.bytes) == (len(rows), sum(len(key) - 1 + len(row) for key, row in rows))

    @invariant()
    def log_has_last_write_of_every_key(self) -> None:
        if not hasattr(self, "live"):
            return
        log, status = self.bench.log(), self.bench.status()
        assert log == [each for each in self.history if each in set(log)], "only these messages, in order"
        assert status.messages == len(log)
        counts = self.bench.machine.log.counts
        assert counts.between(0, 1 << 40, self.bench.view) == len(log)
        replayed: dict[str, str | None] = {key: value for _, key, value in log}
        told = {key: value for key, value in replayed.items() if value is not None}
        assert told == {key: value for key, (_, value, _) in self.live.items()}, (
            "a reader of the whole log has all values"
        )
        last = {key: (version, value) for version, key, value in self.history}
        kept = {version for version, _, _ in log}
        forgotten = self.bench.machine.compactor.forgotten
        for version, value in last.values():
            assert version in kept or (value is None and version <= forgotten)
        deletions = {key: version for key, (version, value) in last.items() if value is None and version in kept}
        rows = {key[1:].decode(): version for key, version in self.bench.rows(key_table.DELETION)}
        assert (rows, self.bench.machine.keys.deletions) == (deletions, len(deletions))


def key_version(base: bytes, at: int) -> bytes:
    return (int.from_bytes(base, "big") + (at << 12)).to_bytes(16, "big")


TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hasty": {"history": 0, "tombstone_retention": 0, "ttl": "20s"},
    "long": {"history": "5m", "tombstone_retention": "20m", "max_attempts": 2},
}


def walk(topic: str, tries: int, steps: int) -> None:
    kind = type(f"Walk_{topic}", (Walk,), {"topic": TOPICS[topic]})
    run_state_machine_as_test(kind, settings=settings(max_examples=tries, stateful_step_count=steps, deadline=None))


@pytest.mark.parametrize("topic", TOPICS)
def test_compacted_partition_matches_a_dict(topic: str) -> None:
    walk(topic, examples(60), 40)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("topic", TOPICS)
def test_long_run_of_compacted_partition_matches_a_dict(topic: str) -> None:
    walk(topic, 2000, 60)
