"""A timer partition on a table: commands in, results out, rows in memory; every entry passes through its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandq.model.batch import Column, encode
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.delivery import Message, Reader
from sandq.partition.groups import Lease
from sandq.partition.rows import Range
from sandq.partition.timer import Status, TimerPartition
from sandq.partition.view import View
from sandq.storage.stores import MemoryStores

T = 1_800_000_000_000
"""The first stamp; tests count from it in ms."""
ALL = 1 << 30


class Bench:
    def __init__(self, **settings: Any) -> None:
        defaults = {"lease": "30s", "max_attempts": 3, "backoff": {"kind": "fixed", "first": "1s", "jitter_percent": 0}}
        self.settings = parse_settings(defaults | settings).record()
        self.stores = MemoryStores()
        self.view = View(self.stores)
        self.machine = TimerPartition.load(0, self.settings, self.view)
        self.index = 0

    def apply(self, at: int, *commands: c.Command) -> list[Any]:
        """Apply one entry stamped T + at and write its rows."""
        self.index += 1
        entry = c.Entry.decode(c.Entry(T + at, commands).encode())
        results = self.machine.apply(self.index, entry, self.view)
        self.machine.write_state(self.view)
        self.stores.write(self.view.drain())
        return results

    def restart(self) -> None:
        """Go on from rows alone."""
        self.view = View(self.stores)
        self.machine = TimerPartition.load(0, {}, self.view)

    # -- commands, one an entry -----------------------------------------------------------------------------------

    def open(self, group: str = "g", start: str = "earliest", at: int = 0) -> int:
        result: int = self.apply(at, c.OpenGroup(group, start))[0]
        return result

    def append(self, *values: str, at: int = 0, due: Sequence[int] | None = None, relative: bool = False) -> Any:
        """`due`: ms after T (or, relative, after the stamp)."""
        columns: dict[int, Any] = {Column.VALUE: [value.encode() for value in values]}
        if due is not None:
            columns[Column.DELIVER_MS] = list(due) if relative else [T + ms for ms in due]
        return self.apply(at, c.Append(encode(columns, relative=relative)))[0]

    def lease(
        self, limit: int = 100, *, at: int = 0, ahead: int = 0, consumer: str = "c", group: str = "g", ms: int = 30_000
    ) -> list[Lease]:
        command = c.Lease(group, T + at + ahead, (c.Grant(consumer, limit, ms),))
        result: list[Lease] = self.apply(at, command)[0]
        return result

    def one(self, **lease: Any) -> Lease:
        """The only lease that is granted."""
        leases = self.lease(**lease)
        assert len(leases) == 1
        return leases[0]

    def ack(self, token: int, what: c.What = None, at: int = 0) -> Any:
        return self.apply(at, c.Ack([(token, what)]))[0][0]

    def nack(
        self, token: int, what: c.What = None, at: int = 0, delay: int | None = None, error: str | None = None
    ) -> Any:
        return self.apply(at, c.Nack([(token, what, delay, error)]))[0][0]

    def extend(self, token: int, ms: int = 30_000, at: int = 0) -> int | None:
        result: int | None = self.apply(at, c.Extend([(token, ms)]))[0][0]
        return result

    def expire(self, at: int) -> int:
        result: int = self.apply(at, c.Expire())[0]
        return result

    def release(self, consumer: str = "c", at: int = 0, group: str = "g") -> int:
        result: int = self.apply(at, c.Release(group, consumer))[0]
        return result

    def trim(self, at: int = 0, limit: int = 1000) -> bool:
        result: bool = self.apply(at, c.Trim(limit))[0]
        return result

    # -- looking --------------------------------------------------------------------------------------------------

    def read(self, ranges: Sequence[Range]) -> list[Message]:
        return list(Reader().messages(self.view, ranges))

    def values(self, leases: Sequence[Lease]) -> list[str]:
        return [m.fields[Column.VALUE].decode() for lease in leases for m in self.read(lease.ranges)]

    def rows(self, tag: bytes) -> list[tuple[bytes, bytes]]:
        return self.view.scan(tag, bytes([tag[0] + 1]), limit=ALL, max_bytes=ALL)

    def status(self) -> Status:
        return self.machine.status(self.view)

    def state_of(self, offset: bytes, group: str = "g") -> str:
        """delayed, ready, leased, waiting, acked or dead; from what the partition holds, not from what it answered."""
        book = self.machine.book
        found = book.group(group)
        for lease in found.leases.values():
            mask, foreign = lease.mask_of([[offset, 1]])
            if not foreign and mask & lease.live:
                return "leased"
        for entry in found.waiting.values():
            if any(
                base <= offset < base[:12] + (int.from_bytes(base[12:], "big") + (length << 12)).to_bytes(4, "big")
                for base, length in entry.ranges
            ):
                return "waiting"
        if any(key[5:] == offset for key, _ in self.rows(b"d")):
            return "dead"
        if offset <= found.cursor:
            return "acked"
        return "ready" if int.from_bytes(offset[:6], "big") <= self.machine.now_ms else "delayed"
