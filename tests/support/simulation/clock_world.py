"""Nodes that compare their guarded clocks over a slow network, and one of which was started with a wrong wall clock.

Whoever leads stamps by its own clock. A node comes to lead no sooner than an election takes: its least time-out, then
two round trips with a majority, the second after the first. It gives way to better clocks as `ClockKeeper` does. Driven
by one seed.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from itertools import count

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.peer_clocks import Standing
from sandq.raft.guards import MIN_ELECTION_S

START_S = 1_800_000_000.0
STEP_S = 0.05
ASK_STEPS = 5
"""As often as a node asks that has not agreed with others yet."""
SETTLED_STEPS = 100
"""Then the clock is wrong with which a node comes back."""
MAX_DRIFT_S = 0.5
NEAR_S = 0.1
"""So far from the true time the right clocks are, at most."""
QUESTIONS_MOST = 8


class ClockedNode:
    """One life of a node."""

    def __init__(self, world: ClockWorld, name: str, ahead_s: float) -> None:
        self.name = name
        booted_s = world.rng.uniform(0, 1e6)
        self.clock = GuardedClock(
            wall=lambda: world.now_s + ahead_s, monotonic=lambda: world.now_s - START_S + booted_s, max_drift_ms=500
        )
        self.began_s = world.now_s
        self.answers: Counter[str] = Counter()
        """Of each other node, one after the other."""
        self.answered_s: dict[str, float] = {}
        self.hangs_until_s = 0.0
        """Till then it answers nothing."""
        self.asked: dict[str, dict[int, float]] = {}

    def link(self, other: str) -> None:
        self.asked[other] = {}
        self.clock.peers.linked(other, self.clock.monotonic_s())

    def unlink(self, other: str) -> None:
        self.asked.pop(other, None)
        self.answers.pop(other, None)
        self.answered_s.pop(other, None)
        self.clock.peers.forget(other)


class ClockWorld:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_s = START_S
        self.names = [f"n{number}" for number in range(1, rng.choice((3, 3, 5)) + 1)]
        self.most_s = rng.choice((0.01, 0.3, 0.35))
        """What a frame takes in one direction, at most."""
        self.least_s = rng.choice((0.0, 0.9)) * self.most_s
        self.loss = rng.choice((0.0, 0.1))
        self.wrong = rng.choice(self.names)
        self.leader: str | None = None
        self.changes = self.given_up = self.found_off = 0
        self._numbers = count()
        self._frames: list[tuple[float, int, ClockedNode, ClockedNode, int, float, Standing | None]] = []
        """On their way: when they arrive, at whom, from whom; questions have no standing."""
        self.nodes: dict[str, ClockedNode] = {}
        for name in self.names:
            self.start(name, rng.uniform(-NEAR_S, NEAR_S))

    def start(self, name: str, ahead_s: float) -> None:
        if self.leader == name:
            self.leader = None
        self.nodes[name] = ClockedNode(self, name, ahead_s)
        for other, node in self.nodes.items():
            if other != name:
                node.unlink(name)
                node.link(name)
                self.nodes[name].link(other)

    # -- frames ---------------------------------------------------------------------------------------------------

    def _send(self, to: ClockedNode, by: ClockedNode, number: int, at_s: float, standing: Standing | None) -> None:
        if self.rng.random() >= self.loss:
            arrives_s = self.now_s + self.rng.uniform(self.least_s, self.most_s)
            heapq.heappush(self._frames, (arrives_s, next(self._numbers), to, by, number, at_s, standing))

    def _ask(self, node: ClockedNode) -> None:
        for other, asked in node.asked.items():
            if len(asked) >= QUESTIONS_MOST:
                del asked[next(iter(asked))]
            number = next(self._numbers)
            asked[number] = node.clock.monotonic_s()
            self._send(self.nodes[other], node, number, 0.0, None)

    def _deliver(self) -> None:
        while self._frames and self._frames[0][0] <= self.now_s:
            _, _, to, by, number, at_s, standing = heapq.heappop(self._frames)
            if self.nodes[to.name] is not to or self.nodes[by.name] is not by or self.now_s < to.hangs_until_s:
                continue
            if standing is None:
                self._send(by, to, number, to.clock.now_s(), to.clock.told_standing)
            elif (asked_s := to.asked[by.name].pop(number, None)) is not None:
                if asked_s >= to.answered_s.get(by.name, asked_s):
                    to.answers[by.name] += 1
                    to.answered_s[by.name] = to.clock.monotonic_s()
                to.clock.peers.heard(by.name, at_s, standing, asked_s, to.clock.monotonic_s())
                to.clock.compare()

    # -- leading --------------------------------------------------------------------------------------------------

    def _give_way(self) -> None:
        node = self.nodes[self.leader] if self.leader is not None else None
        better = sorted(node.clock.better_peers(0.0)) if node is not None else []
        if better:
            self.given_up += 1
            self.leader = self.rng.choice(better)

    def _elect(self) -> None:
        """Somebody whom a majority answers."""
        able = [
            name
            for name, node in self.nodes.items()
            if self.now_s >= max(node.hangs_until_s, node.began_s + MIN_ELECTION_S)
            and sum(answers >= 2 for answers in node.answers.values()) >= len(self.names) // 2
        ]
        if able:
            self.leader = self.rng.choice(able)
            self.changes += 1

    def _disturb(self) -> None:
        """Of the nodes whose clocks are right one at a time, once all have agreed: two that were just started and
        differ cannot know which of them is right."""
        node = self.nodes[self.rng.choice(self.names)]
        right = [other for name, other in self.nodes.items() if name != self.wrong]
        if not all(other.clock.peers.agreed and self.now_s >= other.hangs_until_s for other in right):
            return
        if self.rng.random() < 0.5:
            node.hangs_until_s = self.now_s + self.rng.choice((1.0, 20.0, *([1e9] * (node.name == self.wrong))))
            node.answers.clear()
            node.answered_s.clear()
            node.began_s = node.hangs_until_s
            if self.leader == node.name:
                self.leader = None
        elif node.name == self.wrong:
            self.start(node.name, self.rng.choice((1.2, 5.0, 3600.0, -3600.0)))
        else:
            self.start(node.name, self.rng.uniform(-NEAR_S, NEAR_S))

    # -- time -----------------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        rng = self.rng
        for step in range(steps):
            if step == SETTLED_STEPS:
                self.start(self.wrong, rng.choice((1.2, 5.0, 3600.0, -3600.0)))
            self.now_s += STEP_S
            self._deliver()
            for at, node in enumerate(self.nodes.values()):
                node.clock.compare()
                if (step + at) % ASK_STEPS == 0 and self.now_s >= node.hangs_until_s:
                    self._ask(node)
            if rng.random() < 0.002:
                self._disturb()
            if self.leader is None or rng.random() < 0.01:
                self._elect()
            self._give_way()
            self.check()

    def check(self) -> None:
        wrong = self.nodes[self.wrong].clock
        self.found_off += wrong.peers.off
        if self.leader is not None:
            early_s = self.nodes[self.leader].clock.now_s() - self.now_s
            assert early_s <= MAX_DRIFT_S, f"{self.leader} leads and is {early_s:.3f} s early"
