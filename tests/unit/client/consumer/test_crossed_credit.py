"""Credit of several topics that is taken back while messages are on their way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from sandq.client.consumer.intake import Intake, NodeCredit, Wakeups

CREDIT = 6


class Line:
    """A connection to a node, which pushes as many messages as it has credit for, when the test says so."""

    accepts_negative_credit = True

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.node = NodeCredit(intake)
        self.messages = 0
        """Messages that the node has sent, and that have not arrived yet."""

    def post(self, frame: bytes) -> None: ...

    def flush_soon(self, send: Callable[[], None], *, last: bool) -> None:
        before = self.node._credit
        send()
        self.messages += self.node._credit - before  # the node sends them at once

    def arrive(self) -> None:
        """Deliver the messages that are on their way."""
        count, self.messages = self.messages, 0
        self.node.pushed(count, count)
        self.intake.receive(Chunk(self.node, count), self.node.crossed(count))  # type: ignore[arg-type]
        if not self.node.is_busy:
            self.node.is_busy = True
            self.intake.nodes_changed()


class Chunk:
    """Messages that arrived together."""

    def __init__(self, node: NodeCredit, count: int) -> None:
        self.consumer = self
        self.lease = SimpleNamespace(begin_first=False)
        self.node = node
        self.count = count

    def spans(self, what: object, position: int = 0) -> list[tuple[int, int]]:
        return [(position, self.count)]

    def give_back_from(self, chunk: Chunk, start: int) -> None:
        self.node.give_back(self.count - start)


def test_messages_that_cross_the_end_of_their_credit_reduce_the_credit_of_others(run: Any) -> None:
    """Each topic may hold one message beyond the credit, and no more, in whatever order messages arrive."""

    async def main() -> None:
        intake = Intake(CREDIT, None, False, Wakeups())
        lines = [Line(intake) for _ in range(3)]
        intake.give_credit()
        for line in lines:
            line.messages = line.node.begin(line, 1)  # type: ignore[arg-type]
            line.node.accepted()
        first, *others = lines
        for line in lines:
            line.messages, kept = 1, line.messages - 1
            line.arrive()
            line.messages += kept
        assert first.messages == CREDIT - 1, "it had all of the credit while the others were idle"
        first.arrive()
        for line in others:
            line.arrive()
        assert sum(line.node.held for line in lines) <= CREDIT + len(lines)

    run(main)
