"""Keep the audit log of a node: the event loop queues lines, and a thread writes them.

The event loop never waits for the queue, and queueing never fails. Lines are lost if too many of them wait for the
disk, or if the thread cannot write them. The log counts lost lines, and contains their number at the place where they
are missing.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from sandq.model.caller import ANONYMOUS
from sandq.model.errors import Conflict, SandqError, StorageFailed
from sandq.model.logger import get_logger
from sandq.model.sources import source_of
from sandq.model.times import format_instant
from sandq.server.audit.budgets import PrincipalBudgets
from sandq.server.audit.files import AuditFiles

log = get_logger("sandq.audit")

QUEUED_BYTES: Final = 4 << 20
"""Maximum bytes of lines that wait for the disk. Further lines are lost."""
WRITE_BYTES: Final = 256 << 10
"""Approximate bytes that are written at once."""
CLOSE_S: Final = 2.0
"""Maximum time to wait for unwritten lines when the node stops, in seconds."""
TEXT_CHARS: Final = 300
"""Maximum length of one text in a line, in characters."""
LIST_ITEMS: Final = 20
"""Maximum number of items of a list or a map in a line."""
ABOUT_CHARS: Final = 6500
"""Approximate maximum length of `about` in a line, in characters."""
FREQUENT_ABOUT_CHARS: Final = 1000
"""Approximate maximum length of `about`, in characters, in a line that may be frequent. Lower, to leave space for other
lines."""
NESTED: Final = 4
"""Maximum nesting of lists and maps in a line."""
FREQUENT_PER_S: Final = 100
"""Maximum lines per second about refusals and about single messages, so that they cannot displace other lines."""
FREQUENT_SHARE: Final = FREQUENT_PER_S // 2
"""Maximum number of these lines per second about one principal, so that refusals of one principal do not hide refusals
of others."""
LINES_COLLAPSED: Final = "lines_collapsed"
"""`request` of a line that states how many lines of one principal, request and result were not written."""
LINES_LOST: Final = "lines_lost"
"""`request` of a line that states how many lines are missing before it."""
OK: Final = "ok"
NO_ANSWER: Final = "NO_ANSWER"
"""Result of a request whose connection ended before the reply. The request may have taken effect."""


class AuditLog:
    """The audit log of one node."""

    def __init__(
        self,
        node_id: str,
        files: AuditFiles | None,
        now_ms: Callable[[], int],
        queued_bytes: int = QUEUED_BYTES,
        second: Callable[[], float] = time.monotonic,
    ) -> None:
        """`files`: None if the log is off. `now_ms`: clock for the lines, in epoch milliseconds."""
        self.written = 0
        self.lost = 0
        """Number of lines that could not be written, or exceeded a limit."""
        self._node_id = node_id
        self._files = files
        self._now_ms = now_ms
        self._second = second
        self._queued_limit = queued_bytes
        self._queued_bytes = 0
        self._unreported = 0
        """Number of lost lines that no line of the log reports yet."""
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._frequent_second = 0
        self._frequent = Counter[str]()
        """By owner: number of lines of the kinds limited by `FREQUENT_PER_S` that were written in the second
        `_frequent_second`."""
        self._budgets = PrincipalBudgets(files.capacity_bytes if files is not None else 0, second)
        self._readers = trio.CapacityLimiter(1)

    @property
    def is_on(self) -> bool:
        """Whether this node keeps an audit log."""
        return self._files is not None

    def note(
        self,
        *,
        principal: str,
        peer: str,
        gateway: str,
        request: str,
        about: Mapping[str, Any],
        result: str,
        request_id: int | str,
        is_frequent: bool = False,
    ) -> None:
        """Add a line about a request. `about`: recorded fields by name. `result`: "ok" or an error code.

        `is_frequent`: the limit `FREQUENT_PER_S` applies. If the principal has used up its share, its lines are
        collapsed (`budgets`)."""
        if self._files is None:
            return
        self._note_collapsed()
        owner = _owner_of(principal, peer)
        is_collapsed = not self._budgets.has_bytes(owner)
        if is_collapsed:
            is_first = self._budgets.collapse((owner, request, result))
            if is_first is None:
                with self._changed:
                    self._lose(1)
            if not is_first:
                return
        if is_frequent and not self._is_within_rate(owner):
            with self._changed:
                self._lose(1)
            return
        fields: dict[str, Any] = {"principal": _short(principal), "peer": _short(peer)}
        if gateway:
            fields["gateway"] = _short(gateway)
        fields["request"] = _short(request)
        if about:
            is_short = is_frequent or is_collapsed
            fields["about"] = _About(FREQUENT_ABOUT_CHARS if is_short else ABOUT_CHARS).shown(about)
        number = request_id if isinstance(request_id, int) else _short(request_id)
        line = self._line({**fields, "result": _short(result), "request_id": number})
        if not is_collapsed:
            self._budgets.take(owner, len(line))
        self._add(line)

    def _note_collapsed(self, *, all_of_them: bool = False) -> None:
        """Add a line for each kind of lines that were left out because of a budget, with their number."""
        for (owner, request, result), count in self._budgets.ended(all_of_them=all_of_them):
            about = {"principal": _short(owner), "request": _short(request), "result": _short(result), "count": count}
            self._add(self._line({"request": LINES_COLLAPSED, "about": about}))

    def _is_within_rate(self, owner: str) -> bool:
        """Count a frequent request; return whether its owner, and all owners together, are below their rates."""
        second = int(self._second())
        if second != self._frequent_second:
            self._frequent_second = second
            self._frequent.clear()
        if self._frequent[owner] >= FREQUENT_SHARE or self._frequent.total() >= FREQUENT_PER_S:
            return False
        self._frequent[owner] += 1
        return True

    def _line(self, fields: Mapping[str, Any]) -> bytes:
        """Return a line of the log: JSON with the time, the node and these fields."""
        head = {"time": format_instant(self._now_ms()), "node": self._node_id}
        text = json.dumps({**head, **fields}, ensure_ascii=False, separators=(",", ":"))
        if not text.isprintable():
            # Some readers split lines at other characters than line feeds, and terminals execute control characters.
            text = "".join([one if one.isprintable() else json.dumps(one)[1:-1] for one in text])
        return text.encode() + b"\n"

    def _add(self, line: bytes) -> None:
        """Queue a line for the thread that writes. If the queue is full, the line is lost and counted."""
        with self._changed:
            if self._is_closed or self._queued_bytes + len(line) > self._queued_limit:
                self._lose(1)
                return
            self._lines.append(line)
            self._queued_bytes += len(line)
            if self._thread is None:
                # A daemon thread: a disk that hangs must not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _lose(self, count: int) -> None:
        """Count lost lines. The caller holds the lock."""
        self.lost += count
        self._unreported += count

    # -- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Write queued lines until the log is closed.

        A line that reports the number of lost lines is written first, once writing works again."""
        files = self._files
        assert files is not None
        has_failed = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    break
                lines, unreported = self._dequeue(), self._unreported
            if unreported:
                lines.insert(0, self._line({"request": LINES_LOST, "lost": unreported}))
            data = b"".join(lines)
            try:
                files.append(data)
            except OSError as error:
                if not has_failed:
                    log.error("lines of the audit log are lost: they cannot be written", error=error.strerror)
                has_failed = True
                with self._changed:
                    self._wrote(lines, unreported, is_lost=True)
                continue
            has_failed = False
            with self._changed:
                self._wrote(lines, unreported, is_lost=False)
        files.close()

    def _dequeue(self) -> list[bytes]:
        """Return the lines to write next. These lines count as queued until they are written."""
        lines: list[bytes] = []
        size = 0
        while self._lines and size < WRITE_BYTES:
            lines.append(self._lines.popleft())
            size += len(lines[-1])
        return lines

    def _wrote(self, lines: list[bytes], unreported: int, *, is_lost: bool) -> None:
        """Note that lines were written or lost.

        `unreported`: number of lost lines that the first line reports; 0 if there is no such line."""
        own = lines[1:] if unreported else lines
        self._queued_bytes -= sum(map(len, own))
        if is_lost:
            self._lose(len(own))
        else:
            self.written += len(lines)
            self._unreported -= unreported
        self._changed.notify_all()

    # -- closing and reading --------------------------------------------------------------------------------------

    def until_written(self, seconds: float) -> bool:
        """Wait until all queued lines are written or lost, for at most `seconds`. Return whether the queue is empty.
        Blocks the calling thread."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued_bytes, seconds)

    async def close(self) -> None:
        """Write the queued lines, for at most `CLOSE_S`, and end the thread."""
        self._note_collapsed(all_of_them=True)
        thread = self._thread
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if thread is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(thread.join, CLOSE_S)

    async def read(self, last: int, after: str | None) -> tuple[list[str], str]:
        """Return at most `last` lines, and the position after them. `after`: position of the first line; None: return
        the newest lines.

        Raise Conflict, InvalidRequest or StorageFailed."""
        files = self._files
        if files is None:
            raise Conflict(f"node {self._node_id} keeps no audit log: audit.enabled is false in its configuration")

        def read() -> tuple[list[bytes], str] | SandqError:
            """Read the files in a thread, and return an error instead of raising it."""
            try:
                return files.last(last) if after is None else files.after(after, last)
            except SandqError as error:
                return error

        try:
            # One read at a time. If the disk hangs, the request times out like any other, and its thread is abandoned.
            found = await trio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=self._readers)
        except OSError as error:
            raise StorageFailed(f"the audit log of {self._node_id} cannot be read: {error.strerror}") from None
        if isinstance(found, SandqError):
            raise found
        lines, position = found
        return [line.decode("utf-8", "replace") for line in lines], position


def _owner_of(principal: str, peer: str) -> str:
    """Return the owner of a line's share of the log: the principal, or the address of an anonymous client."""
    if principal != ANONYMOUS:
        return principal
    host = peer if peer.endswith("]") else peer.rpartition(":")[0] or peer
    return f"{principal} {source_of(host)}"


def _short(text: str) -> str:
    """Return a text cut to `TEXT_CHARS`."""
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - 1] + "…"


class _About:
    """Copies the fields of a request for one line of the log. Cuts long and deeply nested values."""

    def __init__(self, chars: int) -> None:
        """`chars`: approximate maximum length of the copy."""
        self._left = chars

    def shown(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of a value that is short enough for the log. "…" replaces omitted parts."""
        if value is None or isinstance(value, bool | int):
            self._left -= 8
            return value
        if isinstance(value, str):
            self._left -= min(len(value), TEXT_CHARS)
            return _short(value)
        if depth > NESTED or not isinstance(value, list | tuple | Mapping):
            return "…"
        more = depth + 1
        if isinstance(value, Mapping):
            found = {}
            for count, (name, one) in enumerate(value.items()):
                if self._left <= 0 or count == LIST_ITEMS:
                    found["…"] = "…"
                    break
                found[str(self.shown(name, NESTED))] = self.shown(one, more)
            return found
        items = []
        for count, one in enumerate(value):
            if self._left <= 0 or count == LIST_ITEMS:
                items.append("…")
                break
            items.append(self.shown(one, more))
        return items
