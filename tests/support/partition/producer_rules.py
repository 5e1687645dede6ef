"""Add the commands of producers to the random command sequences: append, cancel and move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.retries import pack_backoff
from sandq.partition import commands as c
from sandq.partition.log.appends import Stored
from tests.support.partition.bench import T, batch_of, by_id
from tests.support.partition.model_bed import BATCH, KEYS, UNIQUE, Bed, delays, numbers
from tests.support.partition.model_types import Row

_FIXED = pack_backoff({"kind": "fixed", "first_ms": 300, "factor_permille": 1000, "cap_ms": 300, "jitter_percent": 0})
_LINEAR = pack_backoff({"kind": "linear", "first_ms": 200, "factor_permille": 1000, "cap_ms": 900, "jitter_percent": 0})
RULES = ((None, None), (None, None), (1, None), (4, None), (0, _FIXED), (None, _FIXED), (2, _LINEAR))
"""Own rules of messages: number of attempts (0: no limit), and back-off."""


class Producers(Bed):
    # -- producers ------------------------------------------------------------------------------------------------

    @rule(
        dues=st.lists(delays, min_size=1, max_size=BATCH),
        which=numbers,
        relative=st.booleans(),
        ttls=st.one_of(st.none(), st.none(), st.lists(st.sampled_from([None, 1, 900, 30_000]), min_size=8, max_size=8)),
        rules=st.one_of(st.none(), st.lists(st.sampled_from(RULES), min_size=8, max_size=8)),
    )
    def produce(
        self,
        dues: list[int],
        which: int,
        relative: bool,
        ttls: list[int | None] | None,
        rules: list[tuple[int | None, bytes | None]] | None,
    ) -> None:
        made = []
        for at, due in enumerate(dues):
            key = KEYS[(which >> at) % len(KEYS)]
            row = Row(self._name(), due if relative else self.at + due, key, ttls[at] if ttls else None)
            made.append(row if rules is None else replace(row, rules=rules[at]))
        self._append(made, relative, c.REJECT, split=ttls is not None or rules is not None)

    @precondition(lambda self: self.model.ordered)
    @rule(key=st.sampled_from("ab"), dues=st.lists(delays, min_size=3, max_size=BATCH))
    def produce_of_one_key(self, key: str, dues: list[int]) -> None:
        """Produce several messages of one key, so that some are due while others are leased."""
        self._append([Row(self._name(), due, key) for due in dues], True, c.REJECT, split=True)

    @rule(count=st.integers(1, BATCH), due=delays, relative=st.booleans())
    def produce_for_one_moment(self, count: int, due: int, relative: bool) -> None:
        made = [Row(self._name(), due if relative else self.at + due) for _ in range(count)]
        self._append(made, relative, c.REJECT, split=False)

    @rule(count=st.integers(1, BATCH))
    def produce_at_once(self, count: int) -> None:
        self._append([Row(self._name()) for _ in range(count)], False, c.REJECT, split=False)

    @rule(
        named=st.lists(st.tuples(st.sampled_from([*UNIQUE, None]), delays), min_size=1, max_size=3),
        policy=st.sampled_from([c.REJECT, c.REPLACE, c.IGNORE, c.REPLACE_PENDING]),
    )
    def produce_unique(self, named: list[tuple[str | None, int]], policy: int) -> None:
        made = [Row(self._name(), due, unique, None, unique, RULES[due % len(RULES)]) for unique, due in named]
        self._append(made, True, policy, split=True)

    def _name(self) -> str:
        self.made += 1
        return f"m{self.made}." + ("x" * 5000 if self.made % 7 == 0 else "")

    def _append(self, made: list[Row], relative: bool, policy: int, split: bool) -> None:
        due = None if made[0].due is None else [row.due or 0 for row in made]
        batch = batch_of(
            [row.name for row in made],
            due=due,
            relative=relative,
            keys=[row.key for row in made] if any(row.key for row in made) else None,
            ttls=[row.ttl for row in made] if any(row.ttl for row in made) else None,
            unique=[row.unique for row in made] if any(row.unique for row in made) else None,
            attempts=[row.rules[0] for row in made],
            backoffs=[row.rules[1] for row in made],
        )
        split = split or (self.model.ordered and any(row.key for row in made))
        stored = self.apply(c.Append(batch, on_conflict=policy, split=split))
        answers, refused = self.model.append(made, relative, policy, not isinstance(stored, Stored))
        if isinstance(stored, Stored):
            assert stored.offsets == b"".join(answers)
            found = [tuple(one) for one in stored.refused]
            assert found == refused, (found, refused)
            has_outcomes = split and policy != c.REJECT
            assert stored.outcomes == (self.model.outcomes if has_outcomes else None), self.model.outcomes
        else:
            assert offsets.run(*stored) == answers

    @precondition(lambda self: self.model.messages)
    @rule(which=st.lists(numbers, min_size=1, max_size=3), how=st.sampled_from(["id", "offset", "key"]))
    def cancel(self, which: list[int], how: str) -> None:
        targets = self._targets(which, how)
        outcomes = self.apply(c.Cancel([target for target, _ in targets]))
        for outcome, (_, name) in zip(outcomes, targets, strict=True):
            if self._refused(outcome, name):
                continue
            assert name is not None and outcome == ("cancelled", self.model.messages[name].id)
            self.model.remove(name, "cancelled")

    @precondition(lambda self: self.model.messages)
    @rule(
        which=st.lists(st.tuples(numbers, delays), min_size=1, max_size=3),
        how=st.sampled_from(["id", "offset", "key"]),
        relative=st.booleans(),
    )
    def move(self, which: list[tuple[int, int]], how: str, relative: bool) -> None:
        targets = self._targets([number for number, _ in which], how)
        items = [
            (target, to if relative else T + self.at + to - 500, relative)
            for (target, _), (_, to) in zip(targets, which, strict=True)
        ]
        outcomes = self.apply(c.Move(items))
        for place, (outcome, (_, name), (_, to, _)) in enumerate(zip(outcomes, targets, items, strict=True)):
            if self._refused(("too_late", "gone") if outcome[0] == "cancelled" else outcome, name, "gone"):
                assert outcome[0] != "cancelled"
                continue
            assert name is not None
            to = self.model.now + to if relative else to - T
            assert outcome == ("moved", self.model.move(name, to, place))

    @precondition(lambda self: self.model.messages)
    @rule(
        which=st.lists(numbers, min_size=1, max_size=3),
        how=st.sampled_from(["id", "offset", "key"]),
        what=st.sampled_from(["value", "large", "headers", "none"]),
    )
    def update(self, which: list[int], how: str, what: str) -> None:
        targets = self._targets(which, how)
        self.made += 1
        suffix = f"~{self.made}" + ("y" * 5000 if what == "large" else "")
        headers = b"" if what == "none" else b"\x81\xa1n" + bytes([self.made % 100])
        is_value = what in ("value", "large")
        items = []
        for target, name in targets:
            value = f"{name}{suffix}".encode()
            change = {Column.VALUE.value: value} if is_value else {Column.HEADERS.value: headers}
            items.append((target, None, False, None, change))
        outcomes = self.apply(c.Move(items))
        for outcome, (_, name) in zip(outcomes, targets, strict=True):
            if self._refused(outcome, name, "gone", moved=False):
                continue
            assert name is not None
            message = self.model.messages[name]
            assert outcome == ("updated", message.offset)
            message.suffix = suffix if is_value else message.suffix
            message.headers = message.headers if is_value else headers or None

    def _targets(self, numbers: list[int], how: str) -> list[tuple[c.Target, str | None]]:
        self.model.begin(self.bench.index + 1, self.at)  # advance the model first: keys are forgotten with time
        targets: list[tuple[c.Target, str | None]] = []
        for number in numbers:
            # An offset names its message only once in a command, because the first change moves it.
            again = self._target(number, how)[1] in [name for _, name in targets]
            targets.append(self._target(number, "id" if again and how == "offset" else how))
        return targets

    def _target(self, number: int, how: str) -> tuple[c.Target, str | None]:
        """Return a target by one of its names, and the name of the message."""
        if how == "key":
            unique = UNIQUE[number % len(UNIQUE)]
            target: c.Target = [c.TARGET_KEY, unique.encode(), None, unique.encode()]
            return target, self.model.named(unique)
        names = list(self.model.messages)
        name = names[-1 - number % len(names)]
        message = self.model.messages[name]
        # The current offset of a moved message is a valid target while the message is in the log.
        is_there = how == "offset" and message.gone is None and message.offset > self.model.trimmed
        return by_id(message.offset if is_there else message.id), name

    def _refused(self, outcome: Any, name: str | None, cancelled: str = "", moved: bool | None = None) -> bool:
        """Return whether a cancel, a move or an update was rejected, and check that the rejection is right."""
        if name is None:
            assert outcome == ("not_found", None)
            return True
        allowed = self.model.refusals(name, moved=bool(cancelled) if moved is None else moved)
        if cancelled:
            allowed = [("too_late", cancelled) if one[0] == "cancelled" else one for one in allowed]
        assert not allowed or outcome in allowed, (name, outcome, allowed)
        return bool(allowed)
