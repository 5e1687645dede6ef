"""The databases, tables and columns, with their types in MySQL, DuckDB and Arrow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple

import pyarrow as pa

SANDQ: Final = "sandq"
Z4: Final = "z4"
INFORMATION_SCHEMA: Final = "information_schema"


class TypeNames(NamedTuple):
    """The names of a type in MySQL (`column`, `data`), and its type in Arrow."""

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
    """A column of a table.

    `made_of`: the expression of DuckDB that computes the column from other columns. None if the column is fetched.
    """

    name: str
    kind: Kind
    comment: str
    made_of: str | None = None
    needs: tuple[str, ...] = ()
    """The columns that `made_of` uses."""


@dataclass(frozen=True)
class Table:
    """A table.

    `pushed`: columns whose bounds are sent to the cluster. `needs_bounds`: a query without bounds is refused,
    because it would read too much.
    """

    database: str
    name: str
    comment: str
    columns: tuple[Column, ...]
    pushed: tuple[str, ...] = ()
    needs_bounds: bool = False

    @property
    def is_of_tasks(self) -> bool:
        """Whether its rows are messages with the columns of z4."""
        return self.database == Z4 and self.name in ("task", "tasks")

    def column(self, name: str) -> Column | None:
        """Return the column with this name; upper and lower case are equal."""
        wanted = name.lower()
        return next((column for column in self.columns if column.name == wanted), None)


def _json_of(text: str) -> str:
    """Return SQL for a column of text as JSON; NULL where the text is not JSON."""
    return f'CASE WHEN json_valid("{text}") THEN CAST("{text}" AS JSON) END'


def _as_json(text: str) -> str:
    """Return SQL for a column of JSON text as JSON."""
    return f'CAST("{text}" AS JSON)'


_TOPIC = Column("topic", Kind.NAME, "the topic")
_PARTITION = Column("partition", Kind.INT, "the partition's number")
_ID = Column("id", Kind.OFFSET, "the message's first offset; it stays the same when the message is moved")
_OFFSET = Column("offset", Kind.OFFSET, "the position in the log, ordered by time")
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
_PRIORITY = Column("priority", Kind.INT, "lower first, in priority or fair topics")
_TENANT = Column("tenant", Kind.NAME, "the tenant to whose share of a fair topic it belongs")
_TTL_MS = Column("ttl_ms", Kind.BIGINT, "its time to live, counted from deliver_at")
_MAX_ATTEMPTS = Column("max_attempts", Kind.INT, "its own number of attempts, 0 for no limit; NULL if it has none")
_BACKOFF = Column("backoff", Kind.JSON, "its own back-off; NULL if it has none", _as_json("backoff"), ("backoff",))
_COST = Column("cost", Kind.INT, "what a delivery costs, for groups whose rate has a unit")
_SIZE = Column("size", Kind.BIGINT, "bytes of the value")
_STATE = Column("state", Kind.WORD, "delayed, ready, leased, waiting, acked or dead, over all groups")
_GROUP = Column("group", Kind.NAME, "the consumer group")

MESSAGES = Table(
    SANDQ,
    "messages",
    "messages of topics, in every state",
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
        _MAX_ATTEMPTS,
        _BACKOFF,
        _COST,
        _SIZE,
        Column("due_at", Kind.TIME, "its first delivery time"),
        Column("moves", Kind.INT, "number of moves"),
        Column("moved_at", Kind.TIME, "when it was moved last"),
    ),
    ("topic", "partition", "id", "offset", "deliver_at", "state", "key", "unique_key", "tenant"),
    needs_bounds=True,
)

DEAD_LETTERS = Table(
    SANDQ,
    "dead_letters",
    "dead letters of each group",
    (
        _TOPIC,
        _GROUP,
        _PARTITION,
        _ID,
        _OFFSET,
        Column("reason", Kind.WORD, "nacked, lease_expired, expired or rejected"),
        Column("error", Kind.TEXT, "its last error"),
        Column("attempts", Kind.INT, "number of attempts since it was last redriven"),
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
    "messages that groups have leased or will retry",
    (
        _TOPIC,
        _GROUP,
        _PARTITION,
        _ID,
        _OFFSET,
        Column("state", Kind.WORD, "leased or waiting, in this group"),
        Column("attempt", Kind.INT, "1 for the first"),
        Column("consumer", Kind.NAME, "the consumer that holds it"),
        Column("lease_token", Kind.NAME, "the token that settles it"),
        Column("lease_until", Kind.TIME, "when the lease ends"),
        Column("retry_at", Kind.TIME, "when it is retried"),
        Column("error", Kind.TEXT, "its last error"),
        _DELIVER_AT,
        _KEY,
        Column("reason", Kind.TEXT, "the reason why it waits"),
    ),
    ("topic", "group", "state", "deliver_at"),
    needs_bounds=True,
)

KEYS = Table(
    SANDQ,
    "keys",
    "current values of keys in compacted topics",
    (
        _TOPIC,
        _PARTITION,
        _KEY,
        _KEY_BYTES,
        Column("version", Kind.OFFSET, "the offset of the write"),
        Column("written_at", Kind.TIME, "the time in the version"),
        Column("expires_at", Kind.TIME, "when its time to live ends"),
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
    "schedules, which send recurring messages",
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
        Column("next_id", Kind.OFFSET, "the id of that message, if it is already stored"),
        Column("fired", Kind.BIGINT, "number of past occurrences"),
        Column("missed", Kind.BIGINT, "number of skipped occurrences"),
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
        Column("reason", Kind.TEXT, "why it gets no new messages; NULL if it does"),
        Column("touched_at", Kind.TIME, "when it was used last"),
        Column("cursor", Kind.OFFSET, "the smallest last leased offset of its partitions"),
        Column("settings", Kind.JSON, "its own settings", _as_json("settings"), ("settings",)),
    ),
    ("topic",),
)

TOPICS = Table(
    SANDQ,
    "topics",
    "topics, with their sizes",
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
    "partitions, with their leaders and sizes",
    (
        _TOPIC,
        _PARTITION,
        Column("leader", Kind.NAME, "the node that leads it; NULL if there is none"),
        Column("nodes", Kind.JSON, "the nodes that should have a replica, an array", _as_json("nodes"), ("nodes",)),
        Column("moving", Kind.BOOL, "whether it is being moved"),
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
        Column("up", Kind.BOOL, "whether it can be reached"),
        Column("client", Kind.NAME, "its client port"),
        Column("zone", Kind.NAME, "its zone"),
        Column("version", Kind.WORD, "of sandq"),
        Column("standing", Kind.WORD, "in, draining, drained or out"),
        Column("sick", Kind.TEXT, "why it leads no partitions; NULL if it is healthy"),
        Column("weight", Kind.INT, "its share of replicas"),
        Column("voter", Kind.BOOL, "in the metadata group"),
        Column("replicas", Kind.INT, "replicas that it should have, or may still have"),
        Column("metadata_leader", Kind.BOOL, "whether it leads the metadata group"),
    ),
)

FORECAST = Table(
    SANDQ,
    "forecast",
    "number of messages that become due in each unit of time",
    (
        _TOPIC,
        Column("unit", Kind.WORD, "second, minute (the default) or hour"),
        Column("starts_at", Kind.TIME, "when the second, minute or hour begins"),
        Column("messages", Kind.BIGINT, "stored messages that become due then"),
        Column("scheduled", Kind.BIGINT, "messages that schedules will send then"),
    ),
    ("topic", "unit", "starts_at"),
)

TASK = Table(
    Z4,
    "task",
    "delayed messages, with the columns of z4",
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
    "topics, with the columns of z4",
    (
        Column("id", Kind.NAME, "the topic"),
        Column("positions", Kind.JSON, "the cursors of each group", _as_json("positions"), ("positions",)),
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
    """Return a table; None if it does not exist. The tables of z4 are also found in the database sandq."""
    of, name = database.lower(), name.lower()
    return TABLES.get((of, name)) or (TABLES.get((Z4, name)) if of == SANDQ else None)
