"""`Scan`: the rows of a table that a query needs, and the kind of request that reads them from the cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sandq.model.offsets import TEXT_CHARS
from sandq.protocol.requests_messages import LISTED_STATES
from sandq.sql.bounds import Bound, Bounds
from sandq.sql.budget import IDS
from sandq.sql.errors import TOO_BIG_SELECT, SqlError
from sandq.sql.pages import COLUMNS as OF_PAGES
from sandq.sql.schema import Table

FEW: Final = 200
"""Largest LIMIT for which messages are listed with their states instead of reading pages of the log.

Listing costs more per message than pages, but has its first message sooner.
"""
ALLOW: Final = "sandq_allow_full_scan"
"""Variable with which a session allows queries that read a whole topic."""

# By column of z4's table `task`: the column of `messages`.
_OF_TASK: Final = {
    "queue": "topic",
    "id": "id",
    "deliver_at": "deliver_at",
    "last_retry": "moved_at",
    "metadata": "headers",
    "payload": "value",
}


@dataclass(frozen=True)
class Scan:
    """The rows of a table that a query needs.

    `needed`: the columns that the query uses. `limit`: number of rows that are enough; None if it is unknown before
    reading. `is_ordered`: these rows must be the first ones by `deliver_at`.
    """

    table: Table
    bounds: Bounds
    needed: tuple[str, ...]
    limit: int | None = None
    is_ordered: bool = False

    def of_messages(self) -> Scan:
        """Return a scan of `task` as the equivalent scan of `messages`; other scans unchanged."""
        if not self.table.is_of_tasks:
            return self
        from sandq.sql.schema import MESSAGES

        columns = {_OF_TASK[name]: bound for name, bound in self.bounds.columns.items()}
        bounds = Bounds(columns, {_OF_TASK.get(name, name) for name in self.bounds.rest})
        needed = tuple(_OF_TASK[name] for name in self.needed)
        return Scan(MESSAGES, bounds, needed, self.limit, self.is_ordered)

    def within(self, column: str) -> Scan:
        """Return a copy whose bounds may be changed without changing this scan. It has bounds of `column`."""
        columns = {name: replace(bound) for name, bound in self.bounds.columns.items()}
        columns.setdefault(column, Bound())
        return replace(self, bounds=Bounds(columns, set(self.bounds.rest)))

    @property
    def by_name(self) -> str | None:
        """The column by which the query names single messages: `id` or `unique_key`. None if the query names no
        messages."""
        return next((name for name in ("id", "unique_key") if self.bounds.of(name).values is not None), None)

    @property
    def is_few(self) -> bool:
        """Whether the LIMIT is small enough to list messages. A request for a list has no bounds of offsets."""
        return self.limit is not None and self.limit <= FEW and "offset" not in self.bounds.columns

    @property
    def by_page(self) -> bool:
        """Whether messages are read as columns, a page of the log at a time."""
        return not self.is_few and self.bounds.of("state").values is None and OF_PAGES.issuperset(self.needed)

    def request(self) -> str:
        """Return the names of the requests that read the rows, for EXPLAIN."""
        if self.table.name != "messages" and not self.table.is_of_tasks:
            return {"keys": "KV_SCAN", "dead_letters": "DEAD_LIST", "leases": "LIST, WHY"}.get(self.table.name, "admin")
        scan = self.of_messages()
        if scan.by_name == "unique_key" and scan.bounds.of("key").values is None:
            return "GET" if scan.bounds.of("tenant").values is not None else "GET, LIST"
        return "GET" if scan.by_name else "FETCH" if scan.by_page else "LIST"

    def pushed(self) -> dict[str, str]:
        """Return the bounds that are sent to the cluster, by column."""
        return {
            name: bound.text()
            for name, bound in self.bounds.columns.items()
            if name in self.table.pushed and bound.text()
        }

    def check(self, *, allow_full: bool) -> None:
        """Raise SqlError (1104) if the scan would read a whole topic, or all topics, and the statement has no LIMIT."""
        if not self.table.needs_bounds or self.limit is not None or allow_full:
            return
        topic = "queue" if self.table.is_of_tasks else "topic"
        if self.bounds.of(topic).values is None:
            raise self._unbounded(f"name the topic: {topic} = '...'")
        of = self.bounds.of
        if self.table.name == "messages" or self.table.is_of_tasks:
            times = of("deliver_at"), of("offset")
            is_bounded = any(bound.is_range or bound.values is not None for bound in times) or bool(
                self.of_messages().by_name
            )
            states = of("state").values
            # Few messages are leased or wait for their next attempt, so their states are a bound, too.
            is_bounded |= states is not None and {"leased", "waiting"}.issuperset(states)
            if not is_bounded:
                other = "" if self.table.is_of_tasks else " or offset"
                is_count = {"topic", "partition"}.issuperset(self.needed)
                count = "; to count messages: SELECT messages FROM topics WHERE topic = '...'" if is_count else ""
                raise self._unbounded(f"bound deliver_at, or name an id{other}{count}")
        elif self.table.name == "keys":
            key = of("key")
            if key.values is None and key.prefix is None and not key.is_range:
                raise self._unbounded("name a key, or bound it: `key` LIKE 'user/%'")

    def _unbounded(self, remedy: str) -> SqlError:
        """Return the error for a query that would read a whole table. `remedy`: how to bound it."""
        return SqlError(
            TOO_BIG_SELECT,
            f"the query would read all of {self.table.name}: {remedy}; or add a LIMIT (docs/sql.md, Bounds), or SET "
            f"{ALLOW} = 1",
        )


def is_exact(scan: Scan) -> bool:
    """Return whether the bounds are equivalent to WHERE. Then the LIMIT of the query can end the scan early."""
    if scan.bounds.rest:
        return False
    # By table: columns whose bounds the requests apply exactly.
    exact: dict[str, tuple[str, ...]] = {
        "messages": ("topic", "partition", "id", "offset", "deliver_at", "state"),
        "keys": ("topic", "partition"),
        "dead_letters": ("topic", "group"),
        "leases": (),
    }
    # z4's table `task` has no exact columns: messages that are not delayed are removed after reading.
    of_table = exact.get(scan.table.name, ())
    for name, bound in scan.bounds.columns.items():
        if name not in of_table or bound.prefix is not None:
            return False
        if name not in ("offset", "deliver_at") and bound.is_range:
            return False
        several = bound.values is not None and len(bound.values) > 1
        # For several times or offsets, the scan reads the whole range between them.
        if several and (name in ("offset", "deliver_at", "state") or (name, scan.table.name) == ("partition", "keys")):
            return False
        if name == "state" and not set(bound.values or ()) <= _ASKED_STATES:
            return False
        if name == "offset" and not all(is_id(end) for end in (*(bound.values or ()), bound.low, bound.high) if end):
            return False
    return True


_ASKED_STATES: Final = frozenset(LISTED_STATES)
"""States by which the cluster can list messages. Dead messages must be searched among all messages."""


def is_id(text: object) -> bool:
    """Return whether a text is a valid id: the text of an offset, in upper case."""
    from sandq.model.errors import InvalidRequest
    from sandq.model.offsets import from_text

    if not isinstance(text, str) or len(text) != TEXT_CHARS:
        return False
    try:
        from_text(text)
    except InvalidRequest:
        return False
    return text == text.upper()


def check_count(count: int) -> None:
    """Raise SqlError if a query names too many messages."""
    if count > IDS:
        raise SqlError(TOO_BIG_SELECT, f"the query names {count:,} messages; at most {IDS:,} are looked up")
