"""Simulate changes of stored messages by producers and operators: cancel, move, unique keys, jobs, seeks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import Conflict, SandqError, UnknownGroup
from sandq.partition import commands as c
from sandq.partition.log.appends import Stored
from tests.support.simulation.oracle import GROUPS, UNKNOWN, Sent

if TYPE_CHECKING:
    from tests.support.simulation.cluster_clients import Clients
    from tests.support.simulation.node_world import Node

OTHER_GROUP = "c"
"""Name of a group without consumers, which is opened and dropped at random."""
BULK_CANCEL, BULK_MOVE = b"x", b"y"
"""Keys of messages that jobs cancel or move."""
KEYS = (b"k1", b"k2", b"k3", BULK_CANCEL, BULK_MOVE)
EVERYTHING = {"from_ms": 0, "until_ms": offsets.U48_MAX, "dry_run": False}


class Owner:
    def __init__(self, node: Node | Clients) -> None:
        self._node = node
        self._rng = node.rng
        self._oracle = node.oracle

    def actions(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.cancel, 2),
            (self.move, 2),
            (self.job, 1),
            (self.redrive, 1),
            (self.seek, 1),
            (self.administer, 1),
        ]

    # -- messages with more columns -------------------------------------------------------------------------------

    def add_columns(self, sent: list[Sent], columns: dict[int, list[Any]]) -> bool:
        """Add keys, unique keys and ttls to some messages. Return whether the log must store single-message rows."""
        rng = self._rng
        split = False
        if rng.random() < 0.4:
            for message in sent:
                message.key = rng.choice((None, *KEYS))
            columns[Column.KEY] = [message.key for message in sent]
            split = self._oracle.ordered
        elif rng.random() < 0.3:
            for message in sent:
                message.unique_key = rng.choice((None, b"u1", b"u2", b"u3"))
            columns[Column.UNIQUE_KEY] = [message.unique_key for message in sent]
            split = True
        if rng.random() < 0.1 and not self._oracle.ordered:
            columns[Column.TTL_MS] = [rng.choice((None, 50, 3000)) for _ in sent]
            split = True
        return split

    def stored(self, sent: list[Sent], result: Any, on_conflict: int) -> None:
        """Note the answer to an append."""
        if isinstance(result, Stored):
            column = [result.offsets[at : at + 16] for at in range(0, len(result.offsets), 16)]
            refused = {position for position, _ in result.refused}
        else:
            column, refused = offsets.run(*result), set()
        assert on_conflict != c.IGNORE or not refused
        is_row = not isinstance(result, Stored) and len(sent) > 1
        known = {message.id for message in self._oracle.sent.values()}
        for at, (message, offset) in enumerate(zip(sent, column, strict=True)):
            left_out = on_conflict == c.IGNORE and message.unique_key is not None and offset in known
            if at in refused or left_out or offset in column[:at]:
                del self._oracle.sent[message.payload]
                continue
            message.offset = message.id = offset
            message.together = is_row and message.not_before_ms == offsets.deliver_ms(offset) > self._node.clock.ms
            if on_conflict == c.IGNORE and message.unique_key is not None:
                # The offset may belong to an earlier message with the same key, whose producer never had an answer.
                message.excused = message.vague = True

    def may_replace(self, message: Sent) -> None:
        """Note that `message` may have replaced other messages with its unique key."""
        if message.unique_key is not None:
            for other in self._oracle.sent.values():
                if other.unique_key == message.unique_key and other is not message:
                    other.excused = True

    # -- cancel and move ------------------------------------------------------------------------------------------

    def _some(self) -> Sent | None:
        known = [message for message in self._oracle.sent.values() if message.id is not None][-60:]
        return self._rng.choice(known) if known else None

    def cancel(self) -> None:
        message = self._some()
        if message is None:
            return
        was_excused, message.excused = message.excused, True

        def done(result: Any) -> None:
            if isinstance(result, UNKNOWN):
                return  # the cancel may have been executed
            verdict, detail = result[0]
            if verdict == "cancelled":
                assert detail == message.id
                message.cancelled = True
            else:
                is_known = verdict == "too_late" or was_excused or message.cancelled
                assert is_known or self._oracle.may_be_forgotten(message), f"{message} is gone: {result}"
                message.excused = was_excused or message.cancelled

        self._node.host.submit(c.Cancel([[c.TARGET_ID, message.id]]), done)

    def move(self) -> None:
        message = self._some()
        if message is None or message.vague:
            return
        delay_ms = self._rng.choice((0, 5, 60, 900))
        to_ms, before_ms = self._node.clock.ms + delay_ms, message.not_before_ms
        message.moving += 1
        message.not_before_ms = min(before_ms, to_ms)
        message.vague = True

        def done(result: Any) -> None:
            if isinstance(result, UNKNOWN):
                return
            message.moving -= 1
            message.vague = False
            verdict, detail = result[0]
            if verdict == "moved":
                message.offset, message.not_before_ms = detail, to_ms
            else:
                message.not_before_ms = before_ms

        item = ([c.TARGET_ID, message.id], to_ms, False)
        self._node.host.submit(c.Move([item]), done)

    # -- jobs -----------------------------------------------------------------------------------------------------

    def job(self) -> None:
        rng = self._rng
        kind = rng.choice(("cancel", "move"))
        prefix = BULK_CANCEL if kind == "cancel" else BULK_MOVE
        for message in self._oracle.sent.values():
            if message.key == prefix:
                message.excused = message.excused or kind == "cancel"
                message.vague = True
                message.moving += 1
        arguments = EVERYTHING | {"key_prefix": prefix, "dry_run": rng.random() < 0.2}
        if kind == "move":
            arguments["shift_ms"] = rng.choice((0, 100, 2000))
        self._start(kind, arguments)

    def redrive(self) -> None:
        group = self._rng.choice(GROUPS)
        rate = self._rng.choice((None, 50))
        self._start("redrive", EVERYTHING | {"group": group, "reason": None, "rate": rate})

    def _start(self, kind: str, arguments: dict[str, Any]) -> None:
        def done(result: Any) -> None:
            assert not isinstance(result, SandqError) or isinstance(result, (*UNKNOWN, UnknownGroup, Conflict)), result

        self._node.host.submit(c.StartJob(self._rng.randbytes(16), kind, arguments), done)

    def redrive_all(self) -> None:
        """Redrive all dead messages, because they must be delivered in the end, too."""
        status = self._node.host.status
        if status.dead and self._node.replica.machine.jobs.next_ms is None:
            for group in GROUPS:
                self._start("redrive", EVERYTHING | {"group": group, "reason": None, "rate": None})

    # -- groups and topics ----------------------------------------------------------------------------------------

    def seek(self) -> None:
        group = self._rng.choice(GROUPS)
        clock = self._node.clock
        to = self._rng.choice(("earliest", "latest", clock.ms - 500, clock.ms + 500))
        self._oracle.seek(group)

        def done(result: Any) -> None:
            if not isinstance(result, UNKNOWN):
                self._oracle.sought(group)

        self._node.host.submit(c.Seek(group, to), done)

    def administer(self) -> None:
        rng = self._rng
        settings = {"max_attempts": None}
        command: c.Command = rng.choice(
            (
                c.OpenGroup(OTHER_GROUP, rng.choice(("earliest", "latest", self._node.clock.ms))),
                c.DropGroup(OTHER_GROUP),
                c.ConfigureGroup(rng.choice(GROUPS), rng.choice(({}, settings))),
                c.Touch([*GROUPS, OTHER_GROUP]),
                c.Clock(),
                c.StopJob(b"no such job there"[:16]),
                c.Configure(self._node.replica.machine.settings | {"dedup_window_ms": rng.choice((0, 1000))}),
            )
        )
        self._node.host.submit(command, lambda result: None)

    def drop_others(self) -> None:
        self._node.host.submit(c.DropGroup(OTHER_GROUP), lambda result: None)
