"""Define the feature level of a next version, which exists in tests only: it adds a command, a row and a frame.

- The command `Mark` stores a row, and may be proposed from that level of the cluster on.
- At that level of the partition, `apply` of TOUCH stores a row, too: a rule of `apply` that changed.
- The frame `FRAME` is sent from that level of the cluster on.

Within `next_version()` this process runs the code of that version. A node uses it if `run_node` gets the levels `NEXT`.
`tests.support.processes.next_node` is such a node in a process of its own. `sandq.cli` is a node of the version before,
which lacks all three."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from sandq.broker.cluster.dispatch import PeerDispatch
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import StoreRows
from sandq.model.features import KNOWN, Levels
from sandq.partition import commands
from sandq.partition.base.step import Step
from sandq.partition.state_machine import TimerPartition
from sandq.storage.keys import after_prefix

NEXT: Final = Levels(KNOWN.lowest, KNOWN.highest + 1)
COMMAND: Final = 200
FRAME: Final = 200
ROW: Final = b"\xf0"
"""First byte of the key of the level's rows."""
TOUCHED: Final = b"touched"


@dataclass(frozen=True, slots=True)
class Mark(commands.Command):
    """Command that stores a row under its text. Its result is the text."""

    type: ClassVar[int] = COMMAND
    feature_level: ClassVar[int] = NEXT.highest
    text: str


@dataclass
class NextVersion:
    """The next version's code, as it runs in this process."""

    dispatches: dict[str, PeerDispatch] = field(default_factory=dict)
    """Dispatch of each node, by its id."""
    heard: list[tuple[str, str, str]] = field(default_factory=list)
    """Receiver, sender and text of each frame of the level."""

    def announce(self, node: str, text: str) -> bool:
        """Send the frame from this node to all connected nodes. Return False and send nothing below the level."""
        dispatch = self.dispatches[node]
        if (dispatch._node_log.feature_level or 0) < NEXT.highest:
            return False
        for other in list(dispatch._links.up):
            dispatch._links.send(other, FRAME, text)
        return True


@contextmanager
def next_version() -> Iterator[NextVersion]:
    """Make the command, the row and the frame of the level known to this process."""
    version = NextVersion()
    init, heard, handlers = PeerDispatch.__init__, PeerDispatch._heard, TimerPartition.HANDLERS
    touch = handlers[commands.Touch]

    def init_noted(self: PeerDispatch, **parts: Any) -> None:
        init(self, **parts)
        version.dispatches[self._node_log.node_id] = self

    def on_newer_frame(self: PeerDispatch, node: str, kind: int, body: Any, size: int) -> bool:
        if kind != FRAME:
            return heard(self, node, kind, body, size)
        version.heard.append((self._node_log.node_id, node, body))
        return True

    def mark(self: TimerPartition, step: Step, command: Mark) -> str:
        step.view.put(ROW + command.text.encode(), b"")
        return command.text

    def touch_too(self: TimerPartition, step: Step, command: commands.Touch) -> Any:
        if self.shared.level >= NEXT.highest:
            step.view.put(ROW + TOUCHED, b"")
        return touch(self, step, command)

    commands._CLASSES[COMMAND] = Mark
    PeerDispatch.__init__ = init_noted  # type: ignore[method-assign, assignment]
    PeerDispatch._heard = on_newer_frame  # type: ignore[method-assign]
    TimerPartition.HANDLERS = handlers | {Mark: mark, commands.Touch: touch_too}
    try:
        yield version
    finally:
        del commands._CLASSES[COMMAND]
        PeerDispatch.__init__ = init  # type: ignore[method-assign]
        PeerDispatch._heard = heard  # type: ignore[method-assign]
        TimerPartition.HANDLERS = handlers


def rows_of_level(node_log: NodeLog, group: int) -> set[bytes]:
    """Return the names of the level's rows that a partition has stored on this node."""
    pointer = node_log.pointers.get(group)
    assert pointer is not None
    rows = StoreRows(node_log.stores, pointer.store)
    found = rows.scan(ROW, after_prefix(ROW), limit=100, max_bytes=1 << 20)
    return {key.removeprefix(ROW) for key, _ in found}
