"""Simulate nodes that compare their guarded clocks over a slow network; one of them starts with a wrong wall clock.

The leader stamps by its own clock, after that clock has compared itself with others. A node may lead as soon as it
runs: the first member of a new group does not wait for an election timeout. In some worlds, the first leader is the
node with the wrong clock, which leads before any node has compared clocks. It transfers the leadership to a node with a
better clock as `ClockKeeper` does, which takes a while. One seed determines everything."""

from __future__ import annotations

import heapq
import random
from itertools import count

from sandq.broker.clock.clock_keeper import REQUESTS_MOST
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.peer_clocks import Standing
from sandq.broker.peers.link import SILENCE_S

START_S = 1_800_000_000.0
STEP_S = 0.05
ASK_STEPS = 5
"""Number of steps between two requests of a node: as few as for a node that has not agreed with others yet."""
SETTLED_STEPS = 100
"""Step at which a node restarts with the wrong clock."""
MAX_DRIFT_S = 0.5
HOUR_S = 3600.0
NEAR_S = 0.1
"""Maximum deviation of a right clock from the true time, in seconds."""


class ClockedNode:
    """One life of a node."""

    def __init__(self, world: ClockWorld, name: str, ahead_s: float) -> None:
        self.name = name
        booted_s = world.rng.uniform(0, 1e6)
        self.clock = GuardedClock(
            wall=lambda: world.now_s + ahead_s, monotonic=lambda: world.now_s - START_S + booted_s, max_drift_ms=500
        )
        self.clock.peers.nodes = len(world.names)
        self._standing = self.clock.standing
        self.since_s = 0.0
        """Monotonic time at which the standing of its clock last became worse, in seconds."""
        self.hangs_until_s = 0.0
        """Time until which the node sends no answer, in seconds."""
        self.silent_s = 0.0
        """Length of the current silence, in seconds."""
        self.asked: dict[str, dict[int, float]] = {}

    def link(self, other: str) -> None:
        self.asked[other] = {}
        self.clock.peers.linked(other, self.clock.monotonic_s())

    def unlink(self, other: str) -> None:
        self.asked.pop(other, None)
        self.clock.peers.forget(other)

    def compare(self) -> None:
        self.clock.compare()
        worse, self._standing = self.clock.standing > self._standing, self.clock.standing
        if worse:
            self.since_s = self.clock.monotonic_s()


class ClockWorld:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_s = START_S
        self.names = [f"n{number}" for number in range(1, rng.choice((3, 3, 5)) + 1)]
        self.most_s = rng.choice((0.01, 0.3, 0.35, 1.0))
        """Longest delay of a frame in one direction, in seconds."""
        self.wrong_s = (1.2, 5.0, HOUR_S, -HOUR_S) if self.most_s < 1.0 else (5.0, HOUR_S, -HOUR_S)
        """Possible errors of the wrong clock, in seconds: so large that even the slowest answer shows them."""
        self.least_s = rng.choice((0.0, 0.9)) * self.most_s
        self.loss = rng.choice((0.0, 0.1))
        self.wrong = rng.choice(self.names)
        self.leader: str | None = None
        self.changes = self.given_up = self.found_off = self.held = self.stamped = 0
        self._gives_up_s: float | None = None
        """Time at which the current leadership transfer ends, in seconds. None if the leader transfers nothing."""
        self._numbers = count()
        self._frames: list[tuple[float, int, ClockedNode, ClockedNode, int, float, Standing | None]] = []
        """Frames in flight: arrival time, order, receiver, sender, request number, time, standing (None for a request).
        """
        self.nodes: dict[str, ClockedNode] = {}
        self.starts_wrong = rng.random() < 0.5
        for name in self.names:
            starts_wrong = self.starts_wrong and name == self.wrong
            self.start(name, rng.choice(self.wrong_s) if starts_wrong else rng.uniform(-NEAR_S, NEAR_S))
        if self.starts_wrong:
            self._lead(self.wrong)

    def start(self, name: str, ahead_s: float) -> None:
        if self.leader == name:
            self._lead(None)
        self.nodes[name] = ClockedNode(self, name, ahead_s)
        self._relink(name)

    def _relink(self, name: str) -> None:
        pairs = [(one, to) for to in self.nodes if to != name for one, to in ((name, to), (to, name))]
        for one, to in pairs:
            self.nodes[one].unlink(to)
        for one, to in pairs:
            self.nodes[one].link(to)

    # -- frames ---------------------------------------------------------------------------------------------------

    def _send(self, to: ClockedNode, by: ClockedNode, number: int, at_s: float, standing: Standing | None) -> None:
        if self.rng.random() >= self.loss:
            arrives_s = self.now_s + self.rng.uniform(self.least_s, self.most_s)
            heapq.heappush(self._frames, (arrives_s, next(self._numbers), to, by, number, at_s, standing))

    def _ask(self, node: ClockedNode) -> None:
        for other, asked in node.asked.items():
            if len(asked) >= REQUESTS_MOST:
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
                self._send(by, to, number, to.clock.now_s(), to.clock.reported_standing)
            elif (asked_s := to.asked[by.name].pop(number, None)) is not None:
                to.clock.peers.heard(by.name, at_s, standing, asked_s, to.clock.monotonic_s())
                to.compare()

    # -- leading --------------------------------------------------------------------------------------------------

    def _lead(self, name: str | None) -> None:
        self.leader, self._gives_up_s = name, None
        self.changes += name is not None

    def _has_majority(self) -> bool:
        return 2 * sum(self.now_s >= node.hangs_until_s for node in self.nodes.values()) > len(self.names)

    def _yield_now(self) -> None:
        node = self.nodes[self.leader] if self.leader is not None else None
        better = sorted(node.clock.better_peers(node.since_s)) if node is not None else []
        able = [name for name in better if self.now_s >= self.nodes[name].hangs_until_s]
        if self._gives_up_s is None:
            if able and self._has_majority():
                # The delays of the request to take over, the vote request, the votes and the announcement.
                self._gives_up_s = self.now_s + 4 * self.rng.uniform(self.least_s, self.most_s)
        elif self.now_s >= self._gives_up_s:
            self._gives_up_s = None
            if able:
                self.given_up += 1
                self._lead(self.rng.choice(able))

    def _elect(self) -> None:
        """Elect a random node among those that answer, whatever the state of its clock."""
        able = [name for name, node in self.nodes.items() if self.now_s >= node.hangs_until_s]
        if able and self._has_majority():
            self._lead(self.rng.choice(able))

    def _disturb(self) -> None:
        """Silence or restart a node.

        Nodes with right clocks are disturbed one at a time, after all of them have agreed. If two nodes have just
        started and their clocks differ, they cannot know which clock is right."""
        node = self.nodes[self.rng.choice(self.names)]
        right = [other for name, other in self.nodes.items() if name != self.wrong]
        if not all(other.clock.peers.agreed and self.now_s >= other.hangs_until_s for other in right):
            return
        if self.rng.random() < 0.5:
            node.silent_s = self.rng.choice((1.0, 20.0, *([1e9] * (node.name == self.wrong))))
            node.hangs_until_s = self.now_s + node.silent_s
            if self.leader == node.name:
                self._lead(None)
        elif node.name == self.wrong:
            self.start(node.name, self.rng.choice(self.wrong_s))
        else:
            self.start(node.name, self.rng.uniform(-NEAR_S, NEAR_S))

    # -- time -----------------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        rng = self.rng
        for step in range(steps):
            if step == SETTLED_STEPS and not self.starts_wrong:
                self.start(self.wrong, rng.choice(self.wrong_s))
            self.now_s += STEP_S
            self._deliver()
            for at, node in enumerate(self.nodes.values()):
                if node.silent_s > SILENCE_S and self.now_s >= node.hangs_until_s:
                    node.silent_s = 0.0
                    self._relink(node.name)
                node.compare()
                if (step + at) % ASK_STEPS == 0 and self.now_s >= node.hangs_until_s:
                    self._ask(node)
            if rng.random() < 0.002:
                self._disturb()
            if self.leader is None or rng.random() < 0.01:
                self._elect()
            self._yield_now()
            self.check()

    def check(self) -> None:
        wrong = self.nodes[self.wrong].clock
        self.found_off += wrong.peers.off
        if self.leader is None or self._gives_up_s is not None or not self._has_majority():
            return
        leader = self.nodes[self.leader].clock
        if leader.waits:
            self.held += 1
            return
        self.stamped += 1
        early_s = leader.now_s() - self.now_s
        assert early_s <= MAX_DRIFT_S, f"{self.leader} stamps and is {early_s:.3f} s early"
