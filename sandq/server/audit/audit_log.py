"""Keeps the audit log of a node: a thread writes what the event loop notes.

To note something never waits and never fails. What comes while too much waits for the disk, or could not be written, is
lost: it is counted, and the log itself says how many lines are missing where they are.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
import trio

from sandq.model.caller import ANONYMOUS
from sandq.model.errors import Conflict, SandqError, StorageFailed
from sandq.model.sources import source_of
from sandq.model.times import format_instant
from sandq.server.audit.budgets import PrincipalBudgets
from sandq.server.audit.files import AuditFiles

log = structlog.get_logger("sandq.audit")

QUEUED_BYTES: Final = 4 << 20
"""Lines that wait for the disk; what comes beyond them is lost."""
WRITE_BYTES: Final = 256 << 10
"""Written at once, about."""
CLOSE_S: Final = 2.0
"""How long a node that stops waits for what is not written yet."""
TEXT_CHARS: Final = 300
"""Of one thing in a line."""
LIST_ITEMS: Final = 20
ABOUT_CHARS: Final = 6500
"""Of all that a line says of what was asked for, about ..."""
FREQUENT_ABOUT_CHARS: Final = 1000
"""... and of those that may be frequent: they share files with the others."""
NESTED: Final = 4
"""Lists and maps within each other."""
FREQUENT_PER_S: Final = 100
"""Lines a second about refusals, and about single messages: nobody can push out what others did by asking for what is
refused."""
FREQUENT_SHARE: Final = FREQUENT_PER_S // 2
"""Maximum number of these lines of one principal, so that its refusals do not hide those of others."""
LINES_COLLAPSED: Final = "lines_collapsed"
"""What a line is about that tells how many lines of one principal, request and result were not written."""
LINES_LOST: Final = "lines_lost"
"""What a line is about that tells how many are missing before it."""
OK: Final = "ok"
NO_ANSWER: Final = "NO_ANSWER"
"""The result of what was asked on a connection that ended before the answer: it may have been done."""


class AuditLog:
    """That of one node."""

    def __init__(
        self,
        node_id: str,
        files: AuditFiles | None,
        now_ms: Callable[[], int],
        queued_bytes: int = QUEUED_BYTES,
        second: Callable[[], float] = time.monotonic,
    ) -> None:
        """`files`: None: nothing is kept. `now_ms`: stamps lines, in epoch milliseconds."""
        self.written = 0
        self.lost = 0
        """Lines that could not be written, or for which there was no room."""
        self._node_id = node_id
        self._files = files
        self._now_ms = now_ms
        self._second = second
        self._queued_limit = queued_bytes
        self._queued_bytes = 0
        self._untold = 0
        """Of those that are lost, how many the log does not say yet."""
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._frequent_second = 0
        self._frequent = Counter[str]()
        """Number of lines in `_frequent_second` that may be frequent, by principal."""
        self._budgets = PrincipalBudgets(files.capacity_bytes if files is not None else 0, second)
        self._readers = trio.CapacityLimiter(1)

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
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
        """Note that somebody asked for something. `about`: what it is about, by name; `result`: "ok" or the code of an
        error. `is_frequent`: of these so many a second are kept as `FREQUENT_PER_S` says. Lines of a principal that
        has written more than its share are collapsed (`budgets`)."""
        if self._files is None:
            return
        self._tell_collapsed()
        who = _who(principal, peer)
        is_collapsed = not self._budgets.has_bytes(who)
        if is_collapsed:
            is_first = self._budgets.collapse((who, request, result))
            if is_first is None:
                with self._changed:
                    self._lose(1)
            if not is_first:
                return
        if is_frequent and not self._has_room_of_second(who):
            with self._changed:
                self._lose(1)
            return
        told: dict[str, Any] = {"principal": _short(principal), "peer": _short(peer)}
        if gateway:
            told["gateway"] = _short(gateway)
        told["request"] = _short(request)
        if about:
            is_short = is_frequent or is_collapsed
            told["about"] = _About(FREQUENT_ABOUT_CHARS if is_short else ABOUT_CHARS).shown(about)
        number = request_id if isinstance(request_id, int) else _short(request_id)
        line = self._line({**told, "result": _short(result), "request_id": number})
        if not is_collapsed:
            self._budgets.take(who, len(line))
        self._add(line)

    def _tell_collapsed(self, *, all_of_them: bool = False) -> None:
        for (who, request, result), count in self._budgets.ended(all_of_them=all_of_them):
            about = {"principal": _short(who), "request": _short(request), "result": _short(result), "count": count}
            self._add(self._line({"request": LINES_COLLAPSED, "about": about}))

    def _has_room_of_second(self, who: str) -> bool:
        second = int(self._second())
        if second != self._frequent_second:
            self._frequent_second = second
            self._frequent.clear()
        if self._frequent[who] >= FREQUENT_SHARE or self._frequent.total() >= FREQUENT_PER_S:
            return False
        self._frequent[who] += 1
        return True

    def _line(self, told: Mapping[str, Any]) -> bytes:
        head = {"time": format_instant(self._now_ms()), "node": self._node_id}
        text = json.dumps({**head, **told}, ensure_ascii=False, separators=(",", ":"))
        if not text.isprintable():
            # Some readers end lines at more than line feeds, and terminals take controls for orders.
            text = "".join([one if one.isprintable() else json.dumps(one)[1:-1] for one in text])
        return text.encode() + b"\n"

    def _add(self, line: bytes) -> None:
        with self._changed:
            if self._is_closed or self._queued_bytes + len(line) > self._queued_limit:
                self._lose(1)
                return
            self._lines.append(line)
            self._queued_bytes += len(line)
            if self._thread is None:
                # A daemon: a disk that hangs must not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _lose(self, count: int) -> None:
        self.lost += count
        self._untold += count

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        files = self._files
        assert files is not None
        has_failed = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    break
                lines, untold = self._taken(), self._untold
            if untold:
                lines.insert(0, self._line({"request": LINES_LOST, "lost": untold}))
            data = b"".join(lines)
            try:
                files.append(data)
            except OSError as error:
                if not has_failed:
                    log.error("lines of the audit log are lost: they cannot be written", error=error.strerror)
                has_failed = True
                with self._changed:
                    self._wrote(lines, untold, is_lost=True)
                continue
            has_failed = False
            with self._changed:
                self._wrote(lines, untold, is_lost=False)
        files.close()

    def _taken(self) -> list[bytes]:
        """Lines to write next; they count as queued until they are written."""
        lines: list[bytes] = []
        size = 0
        while self._lines and size < WRITE_BYTES:
            lines.append(self._lines.popleft())
            size += len(lines[-1])
        return lines

    def _wrote(self, lines: list[bytes], untold: int, *, is_lost: bool) -> None:
        own = lines[1:] if untold else lines
        self._queued_bytes -= sum(map(len, own))
        if is_lost:
            self._lose(len(own))
        else:
            self.written += len(lines)
            self._untold -= untold
        self._changed.notify_all()

    # -- the end, and reading -------------------------------------------------------------------------------------

    def until_written(self, seconds: float) -> bool:
        """Wait until everything is written or lost, at most so long; whether it is. Not on the event loop."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued_bytes, seconds)

    async def close(self) -> None:
        """Write what is queued, for a moment at most, and end the thread."""
        self._tell_collapsed(all_of_them=True)
        thread = self._thread
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if thread is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(thread.join, CLOSE_S)

    async def read(self, last: int, after: str | None) -> tuple[list[str], str]:
        """The last lines, or those behind a position, and the position behind them. Raises Conflict, InvalidRequest,
        StorageFailed."""
        files = self._files
        if files is None:
            raise Conflict(f"node {self._node_id} keeps no audit log: audit.enabled of its configuration is false")

        def look() -> tuple[list[bytes], str] | SandqError:
            try:
                return files.last(last) if after is None else files.after(after, last)
            except SandqError as error:
                return error

        try:
            # One at a time, and nobody waits for a disk that hangs longer than for any request.
            found = await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._readers)
        except OSError as error:
            raise StorageFailed(f"the audit log of {self._node_id} cannot be read: {error.strerror}") from None
        if isinstance(found, SandqError):
            raise found
        lines, position = found
        return [line.decode("utf-8", "replace") for line in lines], position


def _who(principal: str, peer: str) -> str:
    """Return whose share a line is of: a principal's, or an address' where nobody in particular asks."""
    if principal != ANONYMOUS:
        return principal
    host = peer if peer.endswith("]") else peer.rpartition(":")[0] or peer
    return f"{principal} {source_of(host)}"


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - 1] + "…"


class _About:
    """Makes of what somebody asked for what may stand in a line: nothing long or deep, whatever was sent."""

    def __init__(self, chars: int) -> None:
        self._left = chars

    def shown(self, value: Any, depth: int = 0) -> Any:
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
