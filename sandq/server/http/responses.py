"""Responses of routes, as described in `/openapi.json`. Newer versions may add members."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ResponseModel(BaseModel):
    model_config = ConfigDict(extra="allow")


class Topic(ResponseModel):
    name: str
    kind: str
    partitions: int
    replicas: int
    leaders: list[str | None] = Field(description="Node that leads each partition.")
    settings: dict[str, Any]
    group_limits: dict[str, Any] = Field(default={}, description="Limits by group, of groups that have any.")
    owner: str | None = Field(
        default=None, description="Principal that created it and whose quota it counts for, if any."
    )
    warnings: list[str] = Field(description="Settings that are risky: two replicas do not survive the loss of a node.")


class TopicHeld(Topic):
    stats: list[dict[str, Any]] = Field(description="Contents of each partition.")


class Topics(ResponseModel):
    topics: list[Topic]


class Stored(ResponseModel):
    id: str = Field(description="26 characters that identify the message for good, even after it is moved.")
    offset: str
    partition: int
    outcome: str | None = Field(
        default=None,
        description="With an `on_conflict` other than `reject`: `stored`, `replaced` or `ignored`.",
    )
    other: str | None = Field(
        default=None, description="Id of the message that was replaced, or that has the unique key."
    )
    state: str | None = Field(
        default=None, description="State of the message that has the unique key, if it was not replaced."
    )


class Refusal(ResponseModel):
    """Why a message of many was not stored."""

    code: str
    detail: str
    retriable: bool


class StoredOne(ResponseModel):
    """The outcome of a message of many: the members for a single message, or an `error`."""

    id: str | None = None
    offset: str | None = None
    partition: int | None = None
    outcome: str | None = None
    other: str | None = None
    state: str | None = None
    error: Refusal | None = None


class StoredMany(ResponseModel):
    stored: int
    failed: int
    results: list[StoredOne] = Field(description="In order: `id`, `offset` and `partition`, or an `error`.")


_KEY: Any = Field(default=None, description="The key, if it is UTF-8.")
_KEY_BASE64: Any = Field(default=None, description="The key in base64, if it is not UTF-8.")
_UNIQUE_KEY: Any = Field(default=None, description="The unique key, if it has one that is UTF-8.")
_MAX_ATTEMPTS: Any = Field(default=None, description="A number or `none`. Only if the message has its own.")
_COST: Any = Field(default=None, description="Only if the message has a cost other than 1.")
_BACKOFF: Any = Field(default=None, description="Only if the message has its own.")
_UNIQUE_KEY_BASE64: Any = Field(default=None, description="The unique key in base64, if it is not UTF-8.")
_JSON: Any = Field(default=None, alias="json", description="The value, if its headers say that it is JSON.")
_TEXT: Any = Field(default=None, description="The value, if it is not JSON but UTF-8.")
_HEADERS: Any = Field(default=None, description='Headers, if there are any; bytes are `{"base64": "aw=="}`.')
_HEADERS_BASE64: Any = Field(default=None, description="The headers, if they are no map with text keys.")


class Message(ResponseModel):
    id: str
    offset: str
    topic: str
    partition: int
    deliver_at: str
    json_: Any = _JSON
    text: str | None = _TEXT
    value: str | None = Field(default=None, description="The value in base64; null: the message deletes its key.")
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    headers: dict[str, Any] | None = _HEADERS
    headers_base64: str | None = _HEADERS_BASE64
    priority: int | None = Field(default=None, description="Only if it is not 0.")
    tenant: str | None = Field(default=None, description="Only if it has one.")


_VERSION: Any = Field(description="26 characters that identify this write. Versions of a key sort by time.")


class Put(ResponseModel):
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    version: str = _VERSION
    partition: int


class Entry(ResponseModel):
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    json_: Any = _JSON
    text: str | None = _TEXT
    value: str | None = Field(default=None, description="The value in base64, if it is neither JSON nor UTF-8.")
    headers: dict[str, Any] | None = _HEADERS
    headers_base64: str | None = _HEADERS_BASE64
    version: str = _VERSION
    expires_at: str | None = Field(description="When it expires; null: never.")
    partition: int


class Deleted(ResponseModel):
    version: str = Field(description="Version of the deletion.")


class KeyPage(ResponseModel):
    keys: list[Entry]
    next: str | None = Field(description="`start` of the next page; null on the last page.")


class Change(ResponseModel):
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    json_: Any = _JSON
    text: str | None = _TEXT
    value: str | None = Field(default=None, description="The value in base64; null: the key was deleted.")
    headers: dict[str, Any] | None = _HEADERS
    headers_base64: str | None = _HEADERS_BASE64
    deleted: bool
    version: str = _VERSION
    created_at: str
    partition: int


class Changes(ResponseModel):
    changes: list[Change]
    position: str = Field(description="`after` of the next request.")


class Leased(Message):
    created_at: str
    attempt: int
    lease_token: str
    lease_until: str


class LeasedMessages(ResponseModel):
    messages: list[Leased]
    without_leader: list[int] = Field(description="Partitions without a leader: their messages are missing here.")


class Settled(ResponseModel):
    settled: int


class Extended(ResponseModel):
    lease_until: str | None = Field(description="End of the lease that ends first now; null if there are none.")


class StoredMessage(Message):
    unique_key: str | None = _UNIQUE_KEY
    unique_key_base64: str | None = _UNIQUE_KEY_BASE64
    ttl: str | None = Field(default=None, description="Only if the message has its own.")
    max_attempts: int | str | None = _MAX_ATTEMPTS
    backoff: dict[str, Any] | None = _BACKOFF
    cost: int | None = _COST
    state: str
    created_at: str
    due_at: str = Field(description="Original delivery time.")
    moves: int
    moved_at: str | None
    size: int = Field(description="Bytes of its value.")


class Page(ResponseModel):
    messages: list[StoredMessage]
    next: str | None = Field(description="`after` of the next page; null on the last page.")


class DeadLetter(Message):
    unique_key: str | None = _UNIQUE_KEY
    unique_key_base64: str | None = _UNIQUE_KEY_BASE64
    group: str
    created_at: str
    dead_at: str
    size: int = Field(description="Bytes of its value.")
    reason: str
    attempts: int
    error: str | None
    history: list[dict[str, Any]] = Field(description="The last attempts, each with its `life`.")
    life: int = Field(description="1, and one more after each redrive. Attempts are counted from 1 in each life.")
    lives: list[dict[str, Any]] = Field(description="How the last four earlier lives ended.")
    not_forwarded: str | None = Field(default=None, description="Why the dead letter topic did not accept it.")
    max_attempts: int | str | None = _MAX_ATTEMPTS
    backoff: dict[str, Any] | None = _BACKOFF
    cost: int | None = _COST


class DeadPage(ResponseModel):
    messages: list[DeadLetter]
    next: str | None


class LogPage(ResponseModel):
    messages: list[Message]
    next: str | None = Field(description="`start` of the next page; null on the last page.")


class Why(ResponseModel):
    id: str
    state: str
    groups: list[dict[str, Any]]


class Changed(ResponseModel):
    id: str
    offset: str | None = None


class Job(ResponseModel):
    matched: int
    done: int
    too_late: int = Field(description="Matching messages that a consumer had received already.")


class DeadOutcome(ResponseModel):
    id: str
    outcome: str = Field(description="`redriven`, `purged`, `not_dead` or `not_found`.")
    state: str | None = Field(default=None, description="If `not_dead`: `leased`, `waiting` or `ready`.")


class DeadOutcomes(ResponseModel):
    done: int = Field(description="Number of messages that were redriven or purged.")
    results: list[DeadOutcome] = Field(description="One entry for each of `ids`, in order; repeated ids have one.")


class PushSettings(ResponseModel):
    group: str
    url: str | None = Field(description="Null with the targets `message`.")
    targets: str = Field(default="group", description="`message`: each message has its own URL.")
    secrets: list[str] = Field(description="Hints; the secrets are not shown.")
    headers: dict[str, str] = Field(default={}, description="Headers of the requests; their values are not shown.")
    concurrency: int
    request_timeout: str
    on_429: str = Field(default="snooze", description="Reaction to a response 429 with `Retry-After`.")


class PushNode(ResponseModel):
    node: str
    state: str
    retry_in_ms: int | None = Field(description="If `waiting`: time until the next try.")
    partitions: list[int] = Field(description="Partitions that it leads, and whose messages it pushes.")
    in_flight: int
    error: str | None
    error_at: str | None
    open_hosts: list[str] = Field(
        default=[], description="With the targets `message`: up to 10 hosts that fail. Their messages wait."
    )
    acked: int = Field(description="Messages since the node started; the same for `retried`, `snoozed` and `dead`.")
    retried: int
    snoozed: int
    dead: int


class Push(PushSettings):
    state: str = Field(description="Worst state of its nodes: `waiting`, `probing`, `looking`, `pushing`, `starting`.")
    error: str | None = Field(description="The last error.")
    error_at: str | None
    nodes: list[PushNode]


class Pushes(ResponseModel):
    pushes: list[Push]


class Group(ResponseModel):
    group: str
    lag: int = Field(description="Messages that are due and not acked: ready, leased and waiting.")
    ready: int
    leased: int
    waiting: int
    dead: int
    consumers: int
    settings: dict[str, Any] | None
    dropped: int = Field(description="Messages that expired and were dropped (`on_expiry`), since the group was made.")
    dead_removed: int = Field(description="Dead letters removed by `dead_retention` and `max_dead_letters`.")
    blocked_by_key: int | None = Field(
        default=None,
        description="Number of `ready` messages that wait for messages with the same key; null in a topic without "
        "`ordering: key` and `max_in_flight_per_key`.",
    )
    unfinished: int = Field(
        description="Messages that the group has received and not finished: leased, retrying, or blocked by their keys."
    )
    expired: bool = Field(
        description="Whether `group_ttl` has passed: until it is used again, it keeps only its unfinished messages."
    )
    limits: dict[str, Any] | None = Field(
        default=None,
        description="Limits over all partitions, with the number of messages `in_flight`, and how many the partitions "
        "may have (`given`, which exceeds `max_in_flight` for a while after that was lowered).",
    )
    reason: str | None = Field(description="Why the group receives nothing at present; null if it does.")
    paused_until: str | None = Field(
        default=None, description="When its pause ends by itself; null if it is not paused, or until it is resumed."
    )
    partitions: list[dict[str, Any]]


class NamedLimitState(ResponseModel):
    limit: str = Field(description="Its name.")
    max_in_flight: int | None
    rate: str | None
    burst: int | None
    unit: str | None = None
    given: int | None = Field(description="Messages in flight that its members may have; null if that is not limited.")
    given_burst: int | None = Field(description="Units of the rate that its members have; null without a rate.")
    unheard: int | None = Field(
        description="Members that have not confirmed the last change; until they do, nothing is delivered. Null if the "
        "leader of the limits cannot be reached."
    )
    paused: bool | None = Field(default=None, description="Whether it is paused.")
    paused_until: str | None = Field(
        default=None, description="When its pause ends by itself; null if it is not paused, or until it is resumed."
    )
    paused_by: str | None = Field(default=None, description="Who has paused it.")
    unpaused: int | None = Field(
        default=None, description="Members that have not confirmed the last pause, or its end, yet."
    )


class NamedLimit(NamedLimitState):
    members: int | None = Field(description="Groups that use it, counted once per partition.")


class NamedLimits(ResponseModel):
    limits: list[NamedLimit]


class NamedLimitHeld(NamedLimitState):
    members: list[dict[str, Any]] | None = Field(
        description="Groups that use it, at most 1,000, one per partition: `topic`, `partition`, `group`, `given`, "
        "`given_burst`, `unheard`, `unpaused`."
    )


class Consumer(ResponseModel):
    consumer: str
    address: str | None = Field(description="Address of its connection; null if it sends lease requests instead.")
    since: str | None = Field(description="When it subscribed.")
    credit: int | None = Field(description="Number of messages that it can still receive.")
    partitions: int = Field(description="Number of partitions to which it subscribes.")
    messages: int = Field(description="Number of messages that it holds.")
    leased_at: str | None = Field(description="When the oldest of these was leased.")


class Consumers(ResponseModel):
    consumers: list[Consumer] = Field(description="Consumers with the most messages first.")
    left_out: int = Field(description="Minimum number of further consumers, which are not listed.")


class PausedPart(ResponseModel):
    part: Literal["tenant", "key"]
    tenant: str | None = Field(default=None, description="The tenant; the pause includes the tenants below it.")
    key: str | None = _KEY
    key_base64: str | None = _KEY_BASE64
    paused_until: str | None = Field(
        description="Latest end of the pause, over all partitions; null: it stays until it is resumed."
    )
    partitions: int = Field(description="Number of partitions in which the tenant or key is paused.")


class Pauses(ResponseModel):
    pauses: list[PausedPart] = Field(
        description="Tenants by name, then keys. A key longer than 1,024 bytes has neither `key` nor `key_base64`."
    )
    left_out: int = Field(description="Minimum number of further paused tenants and keys, which are not listed.")


class Groups(ResponseModel):
    groups: list[Group]


class PausedByLease(ResponseModel):
    paused_until: str | None = Field(
        description="End of the pause; later than requested if the part was paused for longer, null if without an end."
    )


class Seeked(ResponseModel):
    cursors: dict[str, str] = Field(description="New position in each partition.")


class Bucket(ResponseModel):
    start: str
    messages: int


class Forecast(ResponseModel):
    now: str
    unit: str
    buckets: list[Bucket] = Field(description="Units of time; those without messages are left out.")
    later: int
    scheduled: list[Bucket] = Field(description="Messages that schedules will send in addition.")
    complete: bool = Field(description="False if a partition has more than a thousand schedules: some are left out.")


_OTHERS = "Members that are not nodes of the cluster: not joined yet, or other machines of the same Serf cluster."


class Node(ResponseModel):
    """A registered node, with its state as known by gossip."""

    node: str
    up: bool = Field(description="Whether the node that answers is connected with it.")
    standing: str = Field(description="`in`, `draining` or `removing`.")
    failed_since_ms: int | None
    sick: str | None = Field(description="Why it cannot work, as reported by itself: its disk failed, or hangs.")
    zone: str
    weight: int
    voter: bool = Field(description="Whether it votes in the metadata group.")
    replicas: int = Field(description="Number of replicas that it is assigned, or may still hold.")
    feature_levels: list[int] = Field(description="Lowest and highest feature level that its version supports.")


class Changing(ResponseModel):
    node: str
    standing: str


class Finalized(ResponseModel):
    before: int = Field(description="Feature level of the cluster before.")
    after: int = Field(description="Highest level that all nodes support.")
    dry_run: bool = Field(description="Whether the level was not changed.")


class LogLevel(ResponseModel):
    level: str = Field(description="Current level.")
    configured: str = Field(description="Level in the configuration.")
    until_ms: int | None = Field(description="When the configured level is restored; null: at a restart, or already.")


class Dump(ResponseModel):
    process: dict[str, Any]
    threads: list[dict[str, Any]] = Field(description="Threads with their stacks, innermost frame first.")
    tasks: list[dict[str, Any]] = Field(description="Tasks of the event loop, with their depths and stacks.")
    task_count: int
    loop_stalls: list[dict[str, Any]] = Field(description="Stalls of the event loop, with the code that caused them.")
    loop_stall_count: int | None = Field(description="null if stalls are not recorded.")
    standing_still_s: dict[str, float] = Field(description="Time without progress, by kind of work.")
    stalled: str | None
    memory: dict[str, Any]
    connections: dict[str, Any]
    raft_groups: dict[str, Any]
    configuration: list[str] = Field(description="Lines of the configuration, without secrets.")
    log: list[str] = Field(description="The last log lines.")


class Partition(ResponseModel):
    topic: str
    partition: int
    leader: str | None
    nodes: list[str] = Field(description="Nodes that are assigned to it; the first one should lead.")
    moving: bool = Field(description="Whether further nodes still hold it, or some of these do not have it yet.")
    steps: list[str] = Field(description="Changes in progress, for people.")
    replicas: int = Field(description="Number of nodes that should hold it; there may be fewer.")
    members: list[dict[str, Any]] | None = Field(
        default=None, description="Members of its Raft group, and how far each is `behind`."
    )


class Partitions(ResponseModel):
    partitions: list[Partition]


class Cluster(ResponseModel):
    cluster: str
    cluster_uuid: str = Field(description="Empty if the node that answers belongs to no cluster yet.")
    waiting: str | None = Field(description="Why it belongs to none yet, for people.")
    node: str
    version: str
    feature_level: int | None = Field(description="Level of features that nodes may use.")
    feature_level_next: int | None = Field(
        description="Higher level that all nodes support: for `/cluster/finalize`, with `cluster.finalize: manual`."
    )
    moving: int = Field(description="Number of partitions that are being moved between nodes.")
    nodes: list[Node]
    others: list[dict[str, Any]] = Field(description=_OTHERS)
    shut: list[dict[str, Any]] = Field(
        description="Replicas that are shut because they could not apply an entry: `topic` (null: metadata), "
        "`partition`, `node`, `index` of the entry, `leads`, `step`, `error`."
    )
    memory: list[dict[str, Any]] = Field(
        description="Memory of the node that answers: for each `account`, the `bytes` it holds and its `limit`."
    )


class Founded(ResponseModel):
    cluster_uuid: str


class Nodes(ResponseModel):
    nodes: list[Node]
    others: list[dict[str, Any]] = Field(description=_OTHERS)


class Clock(ResponseModel):
    guarded_ms: int
    wall_ms: int
    drift_ms: int = Field(description="Wall clock minus guarded clock.")
    alarm: bool
    reason: str | None = Field(description="Reason for the alarm: off, uncompared, wall or disputed.")
    median_ms: int | None = Field(description="Median of the other nodes' guarded clocks, minus this node's.")
    peers: dict[str, int] = Field(description="Guarded clock of each other node, minus this node's.")


class ClockReset(ResponseModel):
    outcome: str = Field(description="begun, under_way (it had begun before), or not_ahead (no reset is needed).")
    floor_ms: int = Field(description="The partition's floor before.")
    now_ms: int = Field(description="The partition's time afterwards.")
    clock_epoch: int = Field(description="Number of resets of its clock.")


class Health(ResponseModel):
    status: str


class Audit(ResponseModel):
    lines: list[dict[str, Any]] = Field(
        description="Oldest first: `time`, `node`, `principal`, `peer`, `gateway`, `request`, `about`, `result`, "
        "`request_id`."
    )
    position: str = Field(description="`after` of the next request, for lines that are written from now on.")
    lost: dict[str, int] = Field(description="Number of lines lost since the start, by node.")
    missing: dict[str, str] = Field(description="Nodes whose lines are missing, with the reason.")


class SloBucket(ResponseModel):
    up_to_ms: float | None = Field(description="Upper bound of the lateness in this bucket; null: no bound.")
    deliveries: int


class SloNode(ResponseModel):
    node: str
    since_ms: int = Field(description="Since when it counts.")
    deliveries: int
    late: int
    early: int
    unproven: int = Field(description="Deliveries while its clock was not trusted.")
    clock_trusted: bool
    clock_reason: str | None = Field(description="Why its clock is not trusted.")
    clock_drift_ms: int | None = Field(description="Its wall clock, minus its guarded clock.")
    clock_median_ms: int | None = Field(description="Median of the others' clocks, minus its own.")


class SloTopic(ResponseModel):
    topic: str
    deliveries: int = Field(description="Number since the nodes started.")
    late: int


class Slo(ResponseModel):
    lateness_ms: int = Field(description="Maximum lateness of a delivery that is in time.")
    target: float = Field(description="Share of deliveries that should be in time.")
    window_ms: int = Field(description="Duration that the objective covers.")
    since_ms: int = Field(description="When counting began, if that is later than the start of the window.")
    deliveries: int = Field(description="First deliveries for which a consumer had credit when they were due.")
    late: int
    in_time: float | None = Field(description="Share of deliveries in time; null if there were none.")
    budget_left: float | None = Field(
        description="Remaining share of the late deliveries that the target allows; negative if there were too many."
    )
    burn_rates: dict[str, float | None] = Field(
        description="By period (`5m`, `1h`, `6h`, `3d`): rate at which the budget is used, 1 being the allowed rate."
    )
    early: int = Field(description="Deliveries before their time. Always 0.")
    histogram: list[SloBucket]
    is_proven: bool = Field(description="Whether all nodes answered, and their clocks are and were trusted.")
    doubts: list[str] = Field(description="What is not proven, and why.")
    nodes: list[SloNode]
    topics: list[SloTopic] = Field(description="Up to 100 topics, those with the most late deliveries.")
    missing: dict[str, str] = Field(description="Nodes that are missing, with the reason.")


class Whoami(ResponseModel):
    principal: str
    grants: list[str] | None = Field(description="Rights and their scope; null: everything.")
    quota: dict[str, int]


class Identity(ResponseModel):
    principal: str
    grants: list[str]
    created_at: str
    expires_at: str | None
    quota: dict[str, int]
    note: str


class NewToken(Identity):
    token: str = Field(description="Its text, which is shown only once.")


class Identities(ResponseModel):
    identities: list[Identity]


class Role(ResponseModel):
    name: str
    grants: list[str]
    built_in: bool


class Roles(ResponseModel):
    roles: list[Role]


class BackupProgress(ResponseModel):
    partitions: int
    partitions_done: int
    bytes: int = Field(description="Estimated bytes of all rows.")
    bytes_done: int


class Backup(ResponseModel):
    backup_id: str
    problem: str | None = Field(default=None, description="Why it is unusable; null if it is usable.")
    kind: str | None = None
    cluster: str | None = None
    cluster_uuid: str | None = None
    begun_ms: int | None = None
    ended_ms: int | None = None
    topics: list[str] | None = None
    partitions: int | None = None
    bytes: int | None = Field(default=None, description="Bytes of its files.")
    plain_bytes: int | None = Field(default=None, description="Bytes of its rows.")
    identities: bool | None = None
    encrypted: bool | None = None
    warnings: list[str] | None = None
    increments: int | None = Field(default=None, description="Number of its increments.")
    reach_ms: int | None = Field(default=None, description="Latest time to which everything can be restored.")
    spans: list[list[int]] | None = Field(
        default=None, description="Ranges of time, in epoch milliseconds, to each moment of which it can be restored."
    )


class LastBackup(ResponseModel):
    backup_id: str | None = Field(description="null if it failed.")
    error: str | None


class SqlColumn(ResponseModel):
    name: str
    type: str = Field(description="Type name of Arrow.")


class SqlRows(ResponseModel):
    columns: list[SqlColumn]
    rows: list[list[Any]] = Field(
        description='Times are text, in UTC, as are integers beyond 2^53; bytes that are not UTF-8 are {"base64": ...}.'
    )
    more: bool = Field(description="Whether there are more rows than `limit`.")


class LastRestore(ResponseModel):
    backup_id: str
    topics: dict[str, str] = Field(description="New name of each topic of the backup.")
    warnings: list[str]
    error: str | None


class Backups(ResponseModel):
    backups: list[Backup]
    running: BackupProgress | None = Field(description="Progress of the backup that is running here.")
    last: LastBackup | None = Field(description="The last backup that was made here since the start.")
    restoring: BackupProgress | None = Field(description="Progress of the restore that is running here.")
    last_restore: LastRestore | None = Field(description="The last restore that was made here since the start.")
