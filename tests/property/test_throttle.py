"""Throttled messages equal a model, among messages of all other rules, with several groups and clock resets.

The model knows for each key the message that it names and its window. It predicts the effect of each throttled message.
For other rules it takes the effect from the reply.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from sandq.model import offsets
from sandq.model.sequence import RESENT, sequence_of
from sandq.partition import commands as c
from sandq.partition.log.appends import Stored
from sandq.partition.records.leases import Lease
from tests.support.examples import seeds
from tests.support.partition.bench import Bench, T, batch_of
from tests.support.simulation.seeds import run_each

STEPS = 250
FEW = 12
KEYS = ("k", "l")
WINDOWS = (700, 5000)
GROUPS = ("g", "h")
"""No seek changes what the first group receives."""
WRONG_MS = 40 * 86_400_000
"""How far a wrong clock is ahead."""
THROTTLES = (c.THROTTLE, c.THROTTLE_BOTH)
PENDING = {"delayed", "ready"}
OTHERS = (c.REJECT, c.REPLACE, c.IGNORE, c.REPLACE_PENDING, c.DEBOUNCE)


@dataclass
class Sent:
    """A stored message. Times are in ms after T."""

    value: str
    id: bytes
    due: int
    """Time before which it must not be leased."""
    start: int = 0
    """Start of its window."""
    length: int | None = None
    """Length of its window; None if it was not throttled."""
    by_wrong_clock: bool = False
    """Whether a wrong clock has set the start."""
    is_leased: bool = False
    """Whether a group has leased it. After a reset it may be pending again."""


class Model:
    """A partition with two groups, and the facts that are known about its messages."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench(
            dedup_window=self.rng.choice(("0s", "1500ms", "1m")),
            max_attempts="none",
            backoff={"kind": "none"},
            retention=self.rng.choice(("0s", "5s")),
        )
        for group in GROUPS:
            self.bench.open(group)
        self.at = 0
        self.sent: dict[bytes, Sent] = {}
        """By id: all messages that no one has cancelled or replaced."""
        self.named: dict[str, Sent] = {}
        """By key: the message that it named last. Absent if that was cancelled."""
        self.calls = 0
        self.received: set[bytes] = set()
        """Ids of the messages that the first group has received."""
        self.leased: list[tuple[str, Lease]] = []
        self.happened: Counter[str] = Counter()

    # -- calls ----------------------------------------------------------------------------------------------------

    def call(self) -> None:
        rng, key = self.rng, self.rng.choice(KEYS)
        rule = rng.choice(THROTTLES) if rng.random() < 0.85 else rng.choice(OTHERS)
        span = rng.choice(WINDOWS) if rule in THROTTLES else rng.choice((None, 500)) if rule == c.DEBOUNCE else None
        delay = 0 if rule == c.THROTTLE_BOTH else rng.choice((0, 0, 300))
        self.calls += 1
        batch = batch_of([f"{key}{self.calls}"], unique=[key], due=[delay], relative=True)
        number = sequence_of(self.calls, 0)
        command = c.Append(batch, 77, 1, number, rule, True, span)
        before = self.named.get(key)
        states = set() if before is None else self.states(before)
        (stored,) = self.bench.apply(self.at, command)
        assert isinstance(stored, Stored)
        message_id, outcome = stored.offsets, stored.outcomes[0][1:] if stored.outcomes else ("stored", None)
        if stored.refused or outcome[0] == "ignored":
            assert before is not None and message_id == before.id
        sent = Sent(f"{key}{self.calls}", message_id, self.at + delay, self.at, span if rule in THROTTLES else None)
        if rule in THROTTLES:
            assert not stored.refused
            self.check(before, states, sent, rule, outcome)
        if outcome[0] == "replaced":
            assert before is not None and outcome[1] == before.id
            assert not states & {"leased", "dead", "gone"}
            del self.sent[before.id]
        if not stored.refused and outcome[0] != "ignored":
            sent.due = self.floored(sent.due) if rule != c.DEBOUNCE else self.placed(message_id)
            assert self.placed(message_id) == sent.due
            self.sent[message_id] = self.named[key] = sent
        self.happened[f"{rule} {outcome[0]}"] += 1
        if rng.random() < 0.3:
            (again,) = self.bench.apply(self.at, c.Append(batch, 77, 1, number | RESENT, rule, True, span))
            assert again == stored

    def check(self, before: Sent | None, states: set[str], sent: Sent, rule: int, outcome: tuple[object, ...]) -> None:
        """Compare the outcome of a throttled message with the expected one. Set its time, and the start of its
        window. `states`: those of the message that its key named before, in all groups."""
        window, what = sent.length, outcome[0]
        assert window is not None
        if before is None:
            assert what == "stored"
            return
        if before.length is None:
            # It is `ignore`. The key is free if the message was received, or passed by both groups.
            assert what == "ignored" or (what == "stored" and (before.is_leased or not states <= PENDING))
            self.happened["other rule"] += 1
            return
        # If a wrong clock has set the start, the row of a message that was leased may expire earlier.
        is_wrong = before.start > self.at + before.length
        before.by_wrong_clock |= is_wrong
        is_over = before.by_wrong_clock or self.at >= before.start + before.length
        may_be_gone = is_over and (before.is_leased or not states <= PENDING)
        if may_be_gone and what == "stored" and self.placed(sent.id) <= self.floored(sent.due):
            self.happened["row gone"] += 1
            return
        if rule == c.THROTTLE:
            if is_wrong:
                before.start = self.at
                self.happened["corrected"] += 1
            assert what == ("stored" if self.at >= before.start + window else "ignored")
            return
        start = min(before.start, self.at + window)
        if self.at >= start + window:
            assert what == "stored"
            return
        if self.at < start and what == "replaced":
            sent.start = start
        else:
            assert what == "stored"
            assert self.at >= start or before.is_leased or not states <= PENDING
            sent.start = min(start, self.at) + window
        sent.due = sent.start
        self.happened["end of a window"] += 1

    def floored(self, at: int) -> int:
        return max(at, self.bench.machine.floor_ms - T)

    def placed(self, message_id: bytes) -> int:
        return offsets.deliver_ms(message_id) - T

    def states(self, sent: Sent) -> set[str]:
        """Return the states of a message in the groups."""
        found = self.bench.machine.log.find_owned(sent.id, self.bench.view)
        return {"gone" if found is None else self.bench.state_of(found.offset, group) for group in GROUPS}

    # -- other steps ------------------------------------------------------------------------------------------------

    def lease(self) -> None:
        group = self.rng.choice(GROUPS)
        for lease in self.bench.lease(
            self.rng.choice((1, 100)), at=self.at, group=group, ms=self.rng.choice((300, 9000))
        ):
            self.leased.append((group, lease))
            for message in self.bench.messages(lease):
                assert message.id in self.sent, "a cancelled or replaced message was leased"
                sent = self.sent[message.id]
                assert sent.due <= self.at
                sent.is_leased = True
                if group == GROUPS[0]:
                    self.received.add(message.id)

    def settle(self) -> None:
        if self.leased:
            _, lease = self.leased.pop(self.rng.randrange(len(self.leased)))
            if self.rng.random() < 0.6:
                self.bench.ack(lease.token, at=self.at)
            else:
                self.bench.nack(lease.token, at=self.at, delay=self.rng.choice((0, 500)))

    def cancel(self) -> None:
        key = self.rng.choice(KEYS)
        outcome = self.bench.cancel((c.TARGET_KEY, key.encode()), at=self.at)
        if outcome[0] == "cancelled":
            self.happened["cancelled"] += self.sent.pop(outcome[1], None) is not None
            if key in self.named and self.named[key].id == outcome[1]:
                del self.named[key]

    def move(self) -> None:
        key, wait = self.rng.choice(KEYS), self.rng.choice((0, 800))
        outcome = self.bench.move((c.TARGET_KEY, key.encode()), wait, at=self.at, relative=True)
        if outcome[0] == "moved":
            self.named[key].due = self.floored(self.at + wait)
            self.happened["moved"] += 1

    def seek(self) -> None:
        self.bench.seek(self.rng.choice(("earliest", "latest", self.at + 1000)), at=self.at, group=GROUPS[1])

    def upkeep(self) -> None:
        self.bench.expire(self.at)
        self.bench.trim(self.at)

    def restart(self) -> None:
        self.bench.restart()

    def reset_clock(self) -> None:
        """Let the clock be wrong for a few steps, and set it back."""
        right = self.at
        self.at += WRONG_MS
        self.call()
        for _ in range(self.rng.randrange(5)):
            self.rng.choice((self.call, self.call, self.lease, self.settle))()
            self.at += self.rng.choice((1, 400))
        right += 10_000
        self.at = right
        (begun,) = self.bench.apply(self.at, c.ClockReset(T + self.at))
        assert begun["outcome"] == "begun"
        while self.bench.status().reset is not None:
            self.bench.upkeep(self.at)
        self.leased.clear()
        for sent in self.sent.values():
            sent.due = min(sent.due, self.at)  # the reset has placed some messages again
        self.happened["reset"] += 1

    def run(self) -> Counter[str]:
        steps = (self.call, self.lease, self.settle, self.cancel, self.move, self.seek, self.upkeep, self.restart)
        for _ in range(STEPS):
            self.at += self.rng.choice((0, 1, 50, 300, 900))
            self.rng.choices((*steps, self.reset_clock), weights=(45, 24, 12, 4, 4, 2, 6, 4, 1))[0]()
        self.at += 100_000
        self.bench.expire(self.at)
        for _ in range(100):
            self.at += 1000
            for lease in self.bench.lease(at=self.at):
                self.received |= {message.id for message in self.bench.messages(lease)}
                self.bench.ack(lease.token, at=self.at)
        assert self.sent.keys() <= self.received
        return self.happened


def happened_in(seed: int) -> Counter[str]:
    return Model(seed).run()


@pytest.mark.parametrize("seed", seeds(0, 400))
def test_throttled_messages_equal_the_model_with_more_seeds(seed: int) -> None:
    happened_in(FEW + seed)


def test_throttled_messages_equal_the_model() -> None:
    happened: Counter[str] = Counter()
    for found in run_each(happened_in, range(FEW)):
        happened += found
    expected = [
        f"{c.THROTTLE} stored",
        f"{c.THROTTLE} ignored",
        f"{c.THROTTLE_BOTH} stored",
        f"{c.THROTTLE_BOTH} replaced",
    ]
    for name in (*expected, "other rule", "end of a window", "cancelled", "moved", "reset"):
        assert happened[name] > 10, (name, happened)
