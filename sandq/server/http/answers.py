"""What routes answer, for `/openapi.json`; further members may come with newer versions."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class Topic(Answer):
    name: str
    kind: str
    partitions: int
    replicas: int
    leaders: list[str | None] = Field(description="By partition: the node that leads it.")
    settings: dict[str, Any]
    group_limits: dict[str, Any] = Field(default={}, description="Of groups that have limits, by group.")
    owner: str | None = Field(
        default=None, description="The principal that created it, and for whose quota it counts, where there is one."
    )
    warnings: list[str] = Field(description="What may not be meant so: two replicas do not survive one node.")


class TopicHeld(Topic):
    stats: list[dict[str, Any]] = Field(description="What each partition holds.")


class Topics(Answer):
    topics: list[Topic]


class Stored(Answer):
    id: str = Field(description="26 characters: names the message from now on, also when it is moved.")
    offset: str
    partition: int
    outcome: str | None = Field(
        default=None,
        description="With an `on_conflict` other than `reject`, what became of it: `stored`, `replaced`, `ignored`.",
    )
    other: str | None = Field(
        default=None, description="The id of the message that was replaced, or that has the unique key."
    )
    state: str | None = Field(
        default=None, description="How the message is that has the unique key, if it was not replaced."
    )


class Refusal(Answer):
    """Why one of many messages was not stored."""

    code: str
    detail: str
    retriable: bool


class StoredOne(Answer):
    """What became of one of many messages: what a single one is answered, or an `error`."""

    id: str | None = None
    offset: str | None = None
    partition: int | None = None
    outcome: str | None = None
    other: str | None = None
    state: str | None = None
    error: Refusal | None = None


class StoredMany(Answer):
    stored: int
    failed: int
    results: list[StoredOne] = Field(description="In order: `id`, `offset`, `partition`, or an `error`.")


_KEY: Any = Field(default=None, description="When it is UTF-8 ...")
_KEY_BASE64: Any = Field(default=None, description="... otherwise so.")
_UNIQUE_KEY: Any = Field(default=None, description="When it has one that is UTF-8 ...")
_HEADERS: Any = Field(default=None, description='When it has some; bytes are written as `{"base64": "aw=="}`.')
_HEADERS_BASE64: Any = Field(default=None, description="The stored headers instead, if they are no map with text keys.")


class Message(Answer):
    id: str
    offset: str
    topic: str
    partition: int
    deliver_at: str
    json_: Any = Field(default=None, alias="json", description="The value when its headers say that it is JSON ...")
    text: str | None = Field(default=None, description="... when it is UTF-8 ...")
    value: str | None = Field(default=None, description="... otherwise in base64; null: the message deletes its key.")
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    headers: dict[str, Any] | None = _HEADERS
    headers_base64: str | None = _HEADERS_BASE64
    priority: int | None = Field(default=None, description="Unless it is 0.")
    tenant: str | None = Field(default=None, description="When it names one.")


_VERSION: Any = Field(description="26 characters: names this write, and sorts behind all before it of its key.")


class Put(Answer):
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    version: str = _VERSION
    partition: int


class Entry(Answer):
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    json_: Any = Field(default=None, alias="json", description="The value when its headers say that it is JSON ...")
    text: str | None = Field(default=None, description="... when it is UTF-8 ...")
    value: str | None = Field(default=None, description="... otherwise in base64.")
    headers: dict[str, Any] | None = _HEADERS
    headers_base64: str | None = _HEADERS_BASE64
    version: str = _VERSION
    expires_at: str | None = Field(description="When its time is over; null: never.")
    partition: int


class Deleted(Answer):
    version: str = Field(description="Of the deletion.")


class KeyPage(Answer):
    keys: list[Entry]
    next: str | None = Field(description="The `start` of the next page; null: this is the last one.")


class Change(Answer):
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    json_: Any = Field(default=None, alias="json", description="The value when its headers say that it is JSON ...")
    text: str | None = Field(default=None, description="... when it is UTF-8 ...")
    value: str | None = Field(default=None, description="... otherwise in base64; null: the key was deleted.")
    headers: dict[str, Any] | None = _HEADERS
    headers_base64: str | None = _HEADERS_BASE64
    deleted: bool
    version: str = _VERSION
    created_at: str
    partition: int


class Changes(Answer):
    changes: list[Change]
    position: str = Field(description="The `after` of the next request.")


class Leased(Message):
    created_at: str
    attempt: int
    lease_token: str
    lease_until: str


class LeasedMessages(Answer):
    messages: list[Leased]
    without_leader: list[int] = Field(description="Partitions that had no leader: what they hold is missing here.")


class Settled(Answer):
    settled: int


class Extended(Answer):
    lease_until: str | None = Field(description="When the first of the leases ends now; null if there are none.")


class StoredMessage(Message):
    unique_key: str | None = _UNIQUE_KEY
    unique_key_base64: str | None = _KEY_BASE64
    ttl: str | None = Field(default=None, description="When it has one of its own.")
    state: str
    created_at: str
    due_at: str = Field(description="When it was to be delivered first.")
    moves: int
    moved_at: str | None
    size: int = Field(description="Of its value, in bytes.")


class Page(Answer):
    messages: list[StoredMessage]
    next: str | None = Field(description="The `after` of the next page; null: this is the last one.")


class DeadLetter(Message):
    unique_key: str | None = _UNIQUE_KEY
    unique_key_base64: str | None = _KEY_BASE64
    group: str
    created_at: str
    dead_at: str
    size: int = Field(description="Of its value, in bytes.")
    reason: str
    attempts: int
    error: str | None
    history: list[dict[str, Any]] = Field(description="The last attempts, each with the `life` that it was made in.")
    life: int = Field(description="1, and one more with each redrive; in each the attempts count from 1.")
    lives: list[dict[str, Any]] = Field(description="How those before ended, which redrives ended: the last four.")
    not_forwarded: str | None = Field(default=None, description="Why the dead letter topic did not take it.")


class DeadPage(Answer):
    messages: list[DeadLetter]
    next: str | None


class LogPage(Answer):
    messages: list[Message]
    next: str | None = Field(description="The `start` of the next page; null: this is the last one.")


class Why(Answer):
    id: str
    state: str
    groups: list[dict[str, Any]]


class Changed(Answer):
    id: str
    offset: str | None = None


class Job(Answer):
    matched: int
    done: int
    too_late: int = Field(description="Matched, but somebody had them already.")


class DeadOutcome(Answer):
    id: str
    outcome: str = Field(description="`redriven`, `purged`, `not_dead` or `not_found`.")
    state: str | None = Field(default=None, description="Of one that is `not_dead`: `leased`, `waiting` or `ready`.")


class DeadOutcomes(Answer):
    done: int = Field(description="How many were redriven, or purged.")
    results: list[DeadOutcome] = Field(
        description="One for each of `ids`, in their order; one that is named twice has one."
    )


class PushSettings(Answer):
    group: str
    url: str
    secrets: list[str] = Field(description="Hints: the secrets themselves are not shown.")
    concurrency: int
    request_timeout: str


class PushNode(Answer):
    node: str
    state: str
    retry_in_ms: int | None = Field(description="Of one that is `waiting`: for how long still.")
    partitions: list[int] = Field(description="Those whose messages it pushes: it leads them.")
    in_flight: int
    error: str | None
    error_at: str | None
    acked: int = Field(description="Messages since the node started; so are `retried`, `snoozed` and `dead`.")
    retried: int
    snoozed: int
    dead: int


class Push(PushSettings):
    state: str = Field(description="The worst of its nodes: `waiting`, `probing`, `looking`, `pushing`, `starting`.")
    error: str | None = Field(description="The last one.")
    error_at: str | None
    nodes: list[PushNode]


class Pushes(Answer):
    pushes: list[Push]


class Group(Answer):
    group: str
    lag: int = Field(description="Messages that are due and not acked: ready, leased, waiting.")
    ready: int
    leased: int
    waiting: int
    dead: int
    consumers: int
    settings: dict[str, Any] | None
    blocked_by_key: int | None = Field(
        default=None,
        description="How many of `ready` wait until fewer messages of their keys are in flight; null in a topic "
        "without `ordering: key` and `max_in_flight_per_key`.",
    )
    unfinished: int = Field(
        description="Messages that the group has received and has yet to finish: leased, retrying, or blocked by "
        "their keys."
    )
    expired: bool = Field(
        description="`group_ttl` has passed: it keeps its unfinished messages, and no others, until it is used."
    )
    limits: dict[str, Any] | None = Field(
        default=None,
        description="Over all partitions, with how many messages are `in_flight`, and how many partitions may have "
        "(`given`, which is more than `max_in_flight` for a while after that was lowered).",
    )
    reason: str | None = Field(description="Why the group gets nothing at present, if so.")
    partitions: list[dict[str, Any]]


class Consumer(Answer):
    consumer: str
    address: str | None = Field(description="Of its connection; null: it leases by requests, and does not subscribe.")
    since: str | None = Field(description="When it subscribed.")
    credit: int | None = Field(description="How many messages it can still receive.")
    partitions: int = Field(description="How many partitions it subscribes to.")
    messages: int = Field(description="How many messages it holds.")
    leased_at: str | None = Field(description="When the oldest of these was leased.")


class Consumers(Answer):
    consumers: list[Consumer] = Field(description="Those with the most messages first.")
    left_out: int = Field(description="The least number of further consumers, which are not listed.")


class Groups(Answer):
    groups: list[Group]


class Seeked(Answer):
    cursors: dict[str, str] = Field(description="By partition.")


class Bucket(Answer):
    start: str
    messages: int


class Forecast(Answer):
    now: str
    unit: str
    buckets: list[Bucket] = Field(description="Units of time without messages are left out.")
    later: int
    scheduled: list[Bucket] = Field(description="What schedules will send beside those messages.")
    complete: bool = Field(description="Whether that is all: beyond a thousand schedules of a partition it is not.")


_OTHERS = "Members that are no nodes of the cluster: still outside, or machines of the same Serf cluster."


class Node(Answer):
    """A registered one; what is believed of it by gossip is there as well."""

    node: str
    up: bool = Field(description="Whether the node that was asked is linked with it.")
    standing: str = Field(description="`in`, `draining` or `removing`.")
    failed_since_ms: int | None
    sick: str | None = Field(description="Why it cannot work, as it says itself: its disk failed, or hangs.")
    zone: str
    weight: int
    voter: bool = Field(description="Whether it votes in the metadata group.")
    replicas: int = Field(description="How many it is to hold, or may still hold.")
    feature_levels: list[int] = Field(description="The lowest and the highest feature level that its version knows.")


class Changing(Answer):
    node: str
    standing: str


class Finalized(Answer):
    before: int = Field(description="The feature level of the cluster before.")
    after: int = Field(description="The highest that all nodes know.")
    dry_run: bool = Field(description="It was only asked for.")


class LogLevel(Answer):
    level: str = Field(description="At which it logs now.")
    configured: str = Field(description="At which it was started.")
    until_ms: int | None = Field(description="When that holds again; null: until it stops, or already.")


class Dump(Answer):
    process: dict[str, Any]
    threads: list[dict[str, Any]] = Field(description="Each with its stack, the innermost frame first.")
    tasks: list[dict[str, Any]] = Field(description="Of the event loop, each with its depth and stack.")
    task_count: int
    loop_stalls: list[dict[str, Any]] = Field(description="When the event loop stood still, and what held it.")
    loop_stall_count: int | None = Field(description="null: nobody looks.")
    standing_still_s: dict[str, float] = Field(description="For how long each kind of work has made no progress.")
    stalled: str | None
    memory: dict[str, Any]
    connections: dict[str, Any]
    raft_groups: dict[str, Any]
    configuration: list[str] = Field(description="As lines of a file; secrets are not in it.")
    log: list[str] = Field(description="The last lines.")


class Partition(Answer):
    topic: str
    partition: int
    leader: str | None
    nodes: list[str] = Field(description="Those that are to hold it; the first one is to lead it.")
    moving: bool = Field(description="Others may still hold it, or not all of these have it yet.")
    steps: list[str] = Field(description="What is under way, in words.")
    replicas: int = Field(description="How many nodes are to hold it; there may be fewer.")
    members: list[dict[str, Any]] | None = Field(
        default=None, description="Those that take part in its group, and how far each is `behind`."
    )


class Partitions(Answer):
    partitions: list[Partition]


class Cluster(Answer):
    cluster: str
    cluster_uuid: str = Field(description="Empty: the node that was asked belongs to none yet.")
    waiting: str | None = Field(description="Why it belongs to none yet, for people.")
    node: str
    version: str
    feature_level: int | None = Field(description="What the cluster has come to: what its nodes may write and say.")
    feature_level_next: int | None = Field(
        description="A higher one that all nodes know: with `cluster.finalize: manual` for `/cluster/finalize`."
    )
    moving: int = Field(description="Partitions that are on their way between nodes.")
    nodes: list[Node]
    others: list[dict[str, Any]] = Field(description=_OTHERS)
    shut: list[dict[str, Any]] = Field(
        description="Replicas on any node that are shut, as they could not apply an entry: `topic` (null: metadata), "
        "`partition`, `node`, `index` of the entry, `leads`, `step`, `error`."
    )
    memory: list[dict[str, Any]] = Field(
        description="Of the node that was asked: what each use of memory holds (`account`, `bytes`), and may (`limit`)."
    )


class Founded(Answer):
    cluster_uuid: str


class Nodes(Answer):
    nodes: list[Node]
    others: list[dict[str, Any]] = Field(description=_OTHERS)


class Clock(Answer):
    guarded_ms: int
    wall_ms: int
    drift_ms: int = Field(description="Wall clock less guarded clock.")
    alarm: bool
    reason: str | None = Field(description="Of the alarm: off, uncompared, wall or disputed.")
    median_ms: int | None = Field(description="The median of the other nodes' guarded clocks, less this node's.")
    peers: dict[str, int] = Field(description="Each other node's guarded clock, less this node's.")


class ClockReset(Answer):
    outcome: str = Field(description="begun, under_way (it had begun before), or not_ahead (nothing is to be done).")
    floor_ms: int = Field(description="The partition's floor before.")
    now_ms: int = Field(description="The partition's time after.")
    clock_epoch: int = Field(description="How often its clock was set back.")


class Health(Answer):
    status: str


class Audit(Answer):
    lines: list[dict[str, Any]] = Field(
        description="The oldest first: `time`, `node`, `principal`, `peer`, `gateway`, `request`, `about`, `result`, "
        "`request_id`."
    )
    position: str = Field(description="`after` of the next request: what is written from now on.")
    lost: dict[str, int] = Field(description="By node: lines that could not be kept since it started.")
    missing: dict[str, str] = Field(description="By node: why nothing is told of it.")


class SloBucket(Answer):
    up_to_ms: float | None = Field(description="Lateness up to this, and above the bound before; null: above all.")
    deliveries: int


class SloNode(Answer):
    node: str
    since_ms: int = Field(description="Since when it counts.")
    deliveries: int
    late: int
    early: int
    unproven: int = Field(description="Deliveries while its clock was not trusted.")
    clock_trusted: bool
    clock_reason: str | None = Field(description="Why its clock is not trusted.")
    clock_drift_ms: int | None = Field(description="Its wall clock, less its guarded clock.")
    clock_median_ms: int | None = Field(description="The median of the others' clocks, less its own.")


class SloTopic(Answer):
    topic: str
    deliveries: int = Field(description="Since the nodes were started.")
    late: int


class Slo(Answer):
    lateness_ms: int = Field(description="A delivery is in time that is no later.")
    target: float = Field(description="The share of deliveries that is to be in time.")
    window_ms: int = Field(description="Over so long.")
    since_ms: int = Field(description="Since when it is counted, if that is later than the window's begin.")
    deliveries: int = Field(description="First deliveries for which a consumer had room when they were due.")
    late: int
    in_time: float | None = Field(description="The share that was in time; null: nothing was delivered.")
    budget_left: float | None = Field(
        description="The share that is left of the late deliveries that the target allows; below 0: there were more."
    )
    burn_rates: dict[str, float | None] = Field(
        description="By time (`5m`, `1h`, `6h`, `3d`): how many times as fast as it may the budget was used."
    )
    early: int = Field(description="Deliveries before their time. Always 0.")
    histogram: list[SloBucket]
    is_proven: bool = Field(description="All nodes told, and their clocks are, and were, trusted.")
    doubts: list[str] = Field(description="What is not proven, and why.")
    nodes: list[SloNode]
    topics: list[SloTopic] = Field(description="Up to 100, of which most came late.")
    missing: dict[str, str] = Field(description="By node: why nothing is told of it.")


class Whoami(Answer):
    principal: str
    grants: list[str] | None = Field(description="Rights, and what they are for; null: everything.")
    quota: dict[str, int]


class Identity(Answer):
    principal: str
    grants: list[str]
    created_at: str
    expires_at: str | None
    quota: dict[str, int]
    note: str


class NewToken(Identity):
    token: str = Field(description="Its text, which is told once.")


class Identities(Answer):
    identities: list[Identity]


class Role(Answer):
    name: str
    grants: list[str]
    built_in: bool


class Roles(Answer):
    roles: list[Role]


class BackupProgress(Answer):
    partitions: int
    partitions_done: int
    bytes: int = Field(description="Of rows, about what there will be.")
    bytes_done: int


class Backup(Answer):
    backup_id: str
    problem: str | None = Field(default=None, description="Why it cannot be used; null: it can.")
    kind: str | None = None
    cluster: str | None = None
    cluster_uuid: str | None = None
    begun_ms: int | None = None
    ended_ms: int | None = None
    topics: list[str] | None = None
    partitions: int | None = None
    bytes: int | None = Field(default=None, description="Of its files.")
    plain_bytes: int | None = Field(default=None, description="Of rows.")
    identities: bool | None = None
    encrypted: bool | None = None
    warnings: list[str] | None = None
    increments: int | None = Field(default=None, description="Behind it.")
    reach_ms: int | None = Field(default=None, description="Up to when all of it can be had, by its increments.")
    spans: list[list[int]] | None = Field(
        default=None, description="Stretches of time, in epoch milliseconds, at each moment of which it can be had."
    )


class LastBackup(Answer):
    backup_id: str | None = Field(description="null: it failed.")
    error: str | None


class SqlColumn(Answer):
    name: str
    type: str = Field(description="Arrow's name of it.")


class SqlRows(Answer):
    columns: list[SqlColumn]
    rows: list[list[Any]] = Field(
        description='Times are texts, in UTC; integers beyond 2^53 too; bytes that are no UTF-8 are {"base64": ...}.'
    )
    more: bool = Field(description="Whether there are more than `limit`.")


class LastRestore(Answer):
    backup_id: str
    topics: dict[str, str] = Field(description="Names of the backup, and those that they have now.")
    warnings: list[str]
    error: str | None


class Backups(Answer):
    backups: list[Backup]
    running: BackupProgress | None = Field(description="Of the one that is being made here.")
    last: LastBackup | None = Field(description="The last one that was made here since the start.")
    restoring: BackupProgress | None = Field(description="Of what is being restored here.")
    last_restore: LastRestore | None = Field(description="The last one that was restored here since the start.")
