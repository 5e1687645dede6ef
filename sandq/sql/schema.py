"""The databases, tables and columns that there are, with their types in MySQL, DuckDB and Arrow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple

import pyarrow as pa

SANDQ: Final = "sandq"
Z4: Final = "z4"
INFORMATION_SCHEMA: Final = "information_schema"


class TypeNames(NamedTuple):
    """How a type is called in MySQL (`column`, `data`), and what it is in Arrow."""

    column: str
    data: str
    arrow: Any


class Kind(Enum):
    """The types of columns."""

    NAME = TypeNames("varchar(255)", "varchar", pa.string())
    OFFSET = TypeNames("char(26)", "char", pa.string())
    WORD = TypeNames("varchar(32)", "varchar", pa.string())
    TEXT = TypeNames("longtext", "longtext", pa.string())
    BYTES = TypeNames("longblob", "longblob", pa.binary())
    JSON = TypeNames("json", "json", pa.string())
    INT = TypeNames("int", "int", pa.int32())
    BIGINT = TypeNames("bigint", "bigint", pa.int64())
    DOUBLE = TypeNames("double", "double", pa.float64())
    BOOL = TypeNames("tinyint(1)", "tinyint", pa.int8())
    TIME = TypeNames("datetime(3)", "datetime", pa.timestamp("us"))


@dataclass(frozen=True)
class Column:
    """`made_of`: an SQL expression of DuckDB over other columns, instead of cells that are fetched."""

    name: str
    kind: Kind
    comment: str
    made_of: str | None = None
    needs: tuple[str, ...] = ()
    """The columns that it is made of."""


@dataclass(frozen=True)
class Table:
    """`pushed`: columns whose bounds are asked of the cluster; `needs_bounds`: it is not read whole by accident."""

    database: str
    name: str
    comment: str
    columns: tuple[Column, ...]
    pushed: tuple[str, ...] = ()
    needs_bounds: bool = False

    @property
    def is_of_tasks(self) -> bool:
        """Whether its rows are messages as z4 shows them."""
        return self.database == Z4 and self.name in ("task", "tasks")

    def column(self, name: str) -> Column | None:
        """The column of this name, whatever its case."""
        wanted = name.lower()
        return next((column for column in self.columns if column.name == wanted), None)


def _json_of(text: str) -> str:
    return f'CASE WHEN json_valid("{text}") THEN CAST("{text}" AS JSON) END'


def _as_json(text: str) -> str:
    return f'CAST("{text}" AS JSON)'


_TOPIC = Column("topic", Kind.NAME, "the topic")
_PARTITION = Column("partition", Kind.INT, "the partition's number")
_ID = Column("id", Kind.OFFSET, "the offset at birth; it stays when the message is moved")
_OFFSET = Column("offset", Kind.OFFSET, "the place in the order of time")
_KEY = Column("key", Kind.TEXT, "the key as text; NULL when it is no UTF-8, or there is none")
_KEY_BYTES = Column("key_bytes", Kind.BYTES, "the key")
_VALUE = Column("value", Kind.BYTES, "the value")
_TEXT = Column("text", Kind.TEXT, "the value as text; NULL when it is no UTF-8")
_JSON = Column("json", Kind.JSON, "the value as JSON; NULL when it is none", _json_of("text"), ("text",))
_HEADERS_TEXT = Column(
    "headers",
    Kind.JSON,
    "the headers, an object; a string of base64 if they are no map",
    _as_json("headers"),
    ("headers",),
)
_DELIVER_AT = Column("deliver_at", Kind.TIME, "when it is due")
_CREATED_AT = Column("created_at", Kind.TIME, "when it was stored")
_UNIQUE_KEY = Column("unique_key", Kind.TEXT, "the unique key as text; NULL when it is no UTF-8, or there is none")
_PRIORITY = Column("priority", Kind.INT, "lower goes first, in topics of the kind priority or fair")
_TENANT = Column("tenant", Kind.NAME, "whose share of a fair topic it counts for")
_TTL_MS = Column("ttl_ms", Kind.BIGINT, "its time to live, counted from deliver_at on")
_SIZE = Column("size", Kind.BIGINT, "bytes of the value")
_STATE = Column("state", Kind.WORD, "delayed, ready, leased, waiting, acked or dead, over all groups")
_GROUP = Column("group", Kind.NAME, "the consumer group")

MESSAGES = Table(
    SANDQ,
    "messages",
    "what topics hold, delivered or not",
    (
        _TOPIC,
        _PARTITION,
        _ID,
        _OFFSET,
        _DELIVER_AT,
        _CREATED_AT,
        _STATE,
        _KEY,
        _KEY_BYTES,
        _UNIQUE_KEY,
        _VALUE,
        _TEXT,
        _JSON,
        _HEADERS_TEXT,
        _PRIORITY,
        _TENANT,
        _TTL_MS,
        _SIZE,
        Column("due_at", Kind.TIME, "when it was due at birth"),
        Column("moves", Kind.INT, "how often it was moved"),
        Column("moved_at", Kind.TIME, "when it was moved last"),
    ),
    ("topic", "partition", "id", "offset", "deliver_at", "state", "key", "unique_key", "tenant"),
    needs_bounds=True,
)

DEAD_LETTERS = Table(
    SANDQ,
    "dead_letters",
    "messages that a group does not get any more",
    (
        _TOPIC,
        _GROUP,
        _PARTITION,
        _ID,
        _OFFSET,
        Column("reason", Kind.WORD, "nacked, lease_expired, expired or rejected"),
        Column("error", Kind.TEXT, "its last error"),
        Column("attempts", Kind.INT, "how often it was tried, in its last life"),
        Column("life", Kind.INT, "1 unless it was redriven before"),
        Column("dead_at", Kind.TIME, "when it died"),
        _DELIVER_AT,
        _CREATED_AT,
        _KEY,
        _KEY_BYTES,
        _UNIQUE_KEY,
        _VALUE,
        _TEXT,
        _JSON,
        _HEADERS_TEXT,
        _PRIORITY,
        _TENANT,
        _SIZE,
        Column("history", Kind.JSON, "its attempts, an array", _as_json("history"), ("history",)),
    ),
    ("topic", "group", "reason", "dead_at", "key"),
    needs_bounds=True,
)

LEASES = Table(
    SANDQ,
    "leases",
    "messages that groups hold, or that wait for another attempt",
    (
        _TOPIC,
        _GROUP,
        _PARTITION,
        _ID,
        _OFFSET,
        Column("state", Kind.WORD, "leased or waiting, in this group"),
        Column("attempt", Kind.INT, "1 for the first"),
        Column("consumer", Kind.NAME, "who holds it"),
        Column("lease_token", Kind.NAME, "what settles it"),
        Column("lease_until", Kind.TIME, "when the lease ends"),
        Column("retry_at", Kind.TIME, "when it comes again"),
        Column("error", Kind.TEXT, "its last error"),
        _DELIVER_AT,
        _KEY,
        Column("reason", Kind.TEXT, "what it waits for, in words"),
    ),
    ("topic", "group", "state", "deliver_at"),
    needs_bounds=True,
)

KEYS = Table(
    SANDQ,
    "keys",
    "what the keys of compacted topics have",
    (
        _TOPIC,
        _PARTITION,
        _KEY,
        _KEY_BYTES,
        Column("version", Kind.OFFSET, "the offset of the write"),
        Column("written_at", Kind.TIME, "the time in the version"),
        Column("expires_at", Kind.TIME, "when its time to live is over"),
        _VALUE,
        _TEXT,
        _JSON,
        _HEADERS_TEXT,
        _SIZE,
    ),
    ("topic", "partition", "key"),
    needs_bounds=True,
)

SCHEDULES = Table(
    SANDQ,
    "schedules",
    "messages that recur",
    (
        _TOPIC,
        Column("name", Kind.NAME, "the schedule's name"),
        _TENANT,
        _PARTITION,
        Column("state", Kind.WORD, "active, paused or ended"),
        Column("cron", Kind.NAME, "its cron expression"),
        Column("every_ms", Kind.BIGINT, "or its interval"),
        Column("zone", Kind.NAME, "its time zone"),
        Column("next_at", Kind.TIME, "the next occurrence"),
        Column("fire_at", Kind.TIME, "when its message is delivered"),
        Column("next_id", Kind.OFFSET, "the id of that message, where it is made ahead"),
        Column("fired", Kind.BIGINT, "occurrences that are over"),
        Column("missed", Kind.BIGINT, "occurrences that were left out"),
        Column("created_at", Kind.TIME, "when it was made"),
        Column("changed_at", Kind.TIME, "when it was changed last"),
        _KEY,
        _VALUE,
        _TEXT,
        _JSON,
        _HEADERS_TEXT,
        _PRIORITY,
        _TTL_MS,
    ),
    ("topic", "name"),
)

GROUPS = Table(
    SANDQ,
    "groups",
    "consumer groups, over all partitions of their topics",
    (
        _TOPIC,
        _GROUP,
        Column("ready", Kind.BIGINT, "messages that are due and wait for a consumer"),
        Column("leased", Kind.BIGINT, "messages that consumers hold"),
        Column("waiting", Kind.BIGINT, "messages that wait for another attempt"),
        Column("dead", Kind.BIGINT, "dead letters"),
        Column("lag", Kind.BIGINT, "ready, leased and waiting together"),
        Column("consumers", Kind.INT, "that are connected"),
        Column("reason", Kind.TEXT, "why it gets no new messages; NULL: it does"),
        Column("touched_at", Kind.TIME, "when it was used last"),
        Column("cursor", Kind.OFFSET, "of the partition that is furthest behind: the last offset that was leased"),
        Column("settings", Kind.JSON, "its own settings", _as_json("settings"), ("settings",)),
    ),
    ("topic",),
)

TOPICS = Table(
    SANDQ,
    "topics",
    "topics, and how much they hold",
    (
        _TOPIC,
        Column("kind", Kind.WORD, "timer, priority, fair or compacted"),
        Column("partitions", Kind.INT, "how many partitions it has"),
        Column("replicas", Kind.INT, "of each partition"),
        Column("owner", Kind.NAME, "who created it"),
        Column("messages", Kind.BIGINT, "that are stored; NULL: a partition has no leader that tells"),
        Column("delayed", Kind.BIGINT, "of these, not due yet"),
        Column("dead", Kind.BIGINT, "dead letters of all groups"),
        Column("keys", Kind.BIGINT, "with a value, in a compacted topic"),
        Column("bytes", Kind.BIGINT, "of values, keys and headers"),
        Column("settings", Kind.JSON, "its settings", _as_json("settings"), ("settings",)),
    ),
    ("topic",),
)

PARTITIONS = Table(
    SANDQ,
    "partitions",
    "partitions, who leads them, what they hold",
    (
        _TOPIC,
        _PARTITION,
        Column("leader", Kind.NAME, "the node that leads it; NULL: none does"),
        Column("nodes", Kind.JSON, "those that are to hold it, an array", _as_json("nodes"), ("nodes",)),
        Column("moving", Kind.BOOL, "whether it is on its way"),
        Column("messages", Kind.BIGINT, "that are stored"),
        Column("delayed", Kind.BIGINT, "of these, not due yet"),
        Column("dead", Kind.BIGINT, "dead letters of all groups"),
        Column("keys", Kind.BIGINT, "with a value, in a compacted topic"),
        Column("bytes", Kind.BIGINT, "of values, keys and headers"),
        Column("now_at", Kind.TIME, "the time of the partition"),
        Column("applied_index", Kind.BIGINT, "of its Raft log"),
    ),
    ("topic",),
)

NODES = Table(
    SANDQ,
    "nodes",
    "the nodes of the cluster, as one of them sees it",
    (
        Column("node", Kind.NAME, "its id"),
        Column("up", Kind.BOOL, "whether it is reached"),
        Column("client", Kind.NAME, "its client port"),
        Column("zone", Kind.NAME, "where it stands"),
        Column("version", Kind.WORD, "of sandq"),
        Column("standing", Kind.WORD, "in, draining, drained or out"),
        Column("sick", Kind.TEXT, "why it leads nothing; NULL: it is well"),
        Column("weight", Kind.INT, "its share of replicas"),
        Column("voter", Kind.BOOL, "in the metadata group"),
        Column("replicas", Kind.INT, "that it is to hold, or may still hold"),
        Column("metadata_leader", Kind.BOOL, "whether it leads the metadata group"),
    ),
)

FORECAST = Table(
    SANDQ,
    "forecast",
    "how many messages come due when",
    (
        _TOPIC,
        Column("unit", Kind.WORD, "second, minute (unless another is asked for) or hour"),
        Column("starts_at", Kind.TIME, "when the second, minute or hour begins"),
        Column("messages", Kind.BIGINT, "that are stored and come due then"),
        Column("scheduled", Kind.BIGINT, "that schedules will send then"),
    ),
    ("topic", "unit", "starts_at"),
)

TASK = Table(
    Z4,
    "task",
    "scheduled messages, as z4 shows them",
    (
        Column("queue", Kind.NAME, "the topic"),
        _ID,
        _DELIVER_AT,
        Column("last_retry", Kind.TIME, "when it was moved last"),
        Column("metadata", Kind.JSON, "the headers", _as_json("metadata"), ("metadata",)),
        Column("payload", Kind.BYTES, "the value"),
    ),
    ("queue", "id", "deliver_at"),
    needs_bounds=True,
)

QUEUE = Table(
    Z4,
    "queue",
    "topics, as z4 shows them",
    (
        Column("id", Kind.NAME, "the topic"),
        Column("positions", Kind.JSON, "of each group: its cursors", _as_json("positions"), ("positions",)),
        Column("ack_deadline", Kind.BIGINT, "how long a message is leased, in seconds"),
    ),
    ("id",),
)

TASKS = replace(TASK, name="tasks", comment="the same as task: the name in z4's README")
QUEUES = replace(QUEUE, name="queues", comment="the same as queue")

_SANDQ_TABLES = (*(MESSAGES, DEAD_LETTERS, LEASES, KEYS, SCHEDULES, GROUPS, TOPICS, PARTITIONS, NODES, FORECAST),)
TABLES: Final[dict[tuple[str, str], Table]] = {
    (table.database, table.name): table for table in (*_SANDQ_TABLES, TASK, TASKS, QUEUE, QUEUES)
}
DATABASES: Final = (SANDQ, Z4, INFORMATION_SCHEMA)


def find_table(database: str, name: str) -> Table | None:
    """Return a table; None if there is none of that name. The tables of z4 are found from database sandq, too."""
    of, name = database.lower(), name.lower()
    return TABLES.get((of, name)) or (TABLES.get((Z4, name)) if of == SANDQ else None)
