"""Track the pending requests of one Raft group. A request is first waiting, then proposed, then committed, then
answered."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from sandq.broker.replication.fair_queue import FairQueue
from sandq.model.errors import Overloaded, SandqError, TimedOut
from sandq.model.limits import Limits

Done = Callable[[Any], None]
"""Callback for the result of a command, or for a SandqError. Called on the event loop. Must not raise."""

BACKLOG_SHARE: Final = 1 / 2
"""Share of the node's backlog that one group may use. The rest is reserved for other groups."""


@dataclass(slots=True)
class Request:
    """A command and its costs."""

    command: Any
    """None once the command is encoded and proposed, so that memory holds a large command only once."""
    size: int
    """Bytes of the backlog that the request uses until it is answered."""
    work: int
    """Cost of applying the command: the size in bytes of a batch of messages that costs the same."""
    messages: int
    """Number of messages that the command creates or changes, for the limit `entry_messages` of an entry."""
    done: Done


class Backlog:
    """Bytes of requests that were submitted and not answered yet, in all groups of a node."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.disk_full: str | None = None
        """Error message while the disk is nearly full: then no new messages are stored. None if there is space."""


class Requests:
    """The requests of one group that are not answered yet."""

    def __init__(self, *, backlog: Backlog, limits: Limits, what: str) -> None:
        """Create the queues. `what`: description of the group in error messages."""
        self._backlog = backlog
        self._limits = limits
        self._what = what
        self.waiting: FairQueue[Request] = FairQueue()
        """Requests that were submitted and not proposed yet."""
        self.proposed: dict[int, list[Request]] = {}
        """Requests of each proposed entry until its outcome is known, by the number that `propose` returned."""
        self.committed: dict[int, list[Request]] = {}
        """Requests of each entry that is committed and not applied yet, by the entry's Raft index."""
        self._pending_bytes = 0
        """Bytes of all requests of the group that are not answered."""
        self.unapplied_bytes = 0
        """Bytes of requests that are proposed and not answered."""
        self.unapplied_work = 0
        """Work of requests that are proposed and not answered."""
        self._entries = 0
        """Number of entries proposed up to now; also the number of the last entry."""
        self._expiring = (0, 0, 0)
        """Number of proposed entries, commit index, and number of added requests at the time of the last `expire`."""

    def check_capacity(self, size: int) -> None:
        """Raise Overloaded if a request of this size exceeds the limit of the node's backlog, or the group's share of
        it."""
        # If nothing else is pending, accept a request of any size: otherwise a very large request could never be sent.
        backlog = self._backlog
        if backlog.bytes + size > backlog.limit_bytes and backlog.bytes:
            raise Overloaded(
                f"{backlog.bytes} bytes wait to be stored here (limit {backlog.limit_bytes}); send again in a moment"
            )
        own_limit_bytes = int(BACKLOG_SHARE * backlog.limit_bytes)
        if self._pending_bytes + size > own_limit_bytes and self._pending_bytes:
            raise Overloaded(
                f"{self._pending_bytes} bytes wait to be stored in {self._what} (limit {own_limit_bytes}); "
                "send again in a moment"
            )

    def add(self, request: Request, line: Hashable | None) -> None:
        """Queue a request. `line`: see `FairQueue.add`."""
        self._backlog.bytes += request.size
        self._pending_bytes += request.size
        # Limit the work that the queue counts for one request. Otherwise a very large request would have to wait until
        # every other flow has done the same amount of work.
        self.waiting.add(request, min(request.work, self._limits.entry_bytes), line)

    def take_entry(self) -> list[Request]:
        """Remove and return the requests of the next entry. If requests wait, return at least one.

        If there are several requests, their total work is at most `entry_bytes`, and together they have at most
        `entry_messages` messages."""
        requests: list[Request] = []
        work = messages = 0
        while self.waiting:
            request = self.waiting.first()
            work += request.work
            messages += request.messages
            if requests and (work > self._limits.entry_bytes or messages > self._limits.entry_messages):
                break
            requests.append(self.waiting.take())
        self.unapplied_work += sum([request.work for request in requests])
        self.unapplied_bytes += sum([request.size for request in requests])
        return requests

    def propose(self, requests: list[Request]) -> int:
        """Record that an entry with these requests is proposed, and return its number."""
        for request in requests:
            request.command = None
        self._entries += 1
        self.proposed[self._entries] = requests
        return self._entries

    def expire(self, timeout_s: float, commit_index: int) -> None:
        """Answer with an error all requests that have been pending since the last call, `timeout_s` ago."""
        number, index, count = self._expiring
        self._expiring = self._entries, commit_index, self.waiting.added
        held = self.waiting.take_first(count)
        self.answer_all(held, Overloaded(f"for {timeout_s:g} s it could not be proposed in {self._what}; send again"))
        late = [requests for proposed, requests in self.proposed.items() if proposed <= number]
        late += [requests for committed, requests in self.committed.items() if committed <= index]
        for requests in late:
            self.answer_all(requests, TimedOut(f"not done within {timeout_s:g} s: the outcome is unknown"))

    def refuse_waiting(self, error: SandqError) -> None:
        """Answer with `error` the requests that are not proposed yet."""
        self.answer_all(self.waiting.take_all(), error)

    def drop_proposed(self, error: SandqError) -> None:
        """Answer with `error` the requests that are not committed yet."""
        self.refuse_waiting(error)
        self._drop(self.proposed, error)

    def drop_committed(self, error: SandqError) -> None:
        """Answer with `error` the waiting requests and the committed requests. Proposed requests stay pending."""
        self.refuse_waiting(error)
        self._drop(self.committed, error)

    def drop_all(self, error: SandqError) -> None:
        """Answer all requests with `error`."""
        self.drop_proposed(error)
        self._drop(self.committed, error)

    def answer_all(self, requests: list[Request], result: Any) -> None:
        """Answer all these requests with the same result. Empty the list, so that each request is answered only
        once."""
        taken = list(requests)
        requests.clear()
        for request in taken:
            self.answer(request, result)

    def answer(self, request: Request, result: Any) -> None:
        """Answer a request and stop counting its bytes."""
        self._backlog.bytes -= request.size
        self._pending_bytes -= request.size
        if request.command is None:
            self.unapplied_bytes -= request.size
            self.unapplied_work -= request.work
        request.done(result)

    def _drop(self, by_entry: dict[int, list[Request]], error: SandqError) -> None:
        """Answer the requests of all these entries with `error`, and empty the dict."""
        for requests in list(by_entry.values()):
            self.answer_all(requests, error)
        by_entry.clear()
