"""Run state machines on the apply thread: a state machine gets entries, and returns results and changed rows.

`PartitionReplica` and `MetadataReplica` implement `Replica`. Each replica holds the rows of one store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from sandq.broker.replication.shut import (
    STOPS_NODE,
    AppliedSkipped,
    ApplyFailure,
    LogGap,
    Step,
    UnknownLevel,
    described,
)
from sandq.metadata import commands as metadata_commands
from sandq.metadata.records import IdentityRecord, NodeRecord, Partition, RemovedNode, Topic
from sandq.metadata.state import MetadataState, check_level
from sandq.model.errors import StartupError, Unavailable
from sandq.model.features import KNOWN, Levels
from sandq.model.logger import get_logger
from sandq.model.names import COMPACTED, FAIR, PRIORITY, TIMER
from sandq.model.piece import LeasedPieces
from sandq.model.settings import parse_settings
from sandq.partition import commands
from sandq.partition.base import rows
from sandq.partition.base.view import Bounds, Change, Row, View
from sandq.partition.kv.compacted import CompactedPartition
from sandq.partition.kv.key_table import KeyTable
from sandq.partition.kv.watch import Changes, Watch, changes
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.records.leases import Lease
from sandq.partition.state_machine import TimerPartition
from sandq.raft import Skip
from sandq.storage.keys import store_prefix
from sandq.storage.stores import Stores

T = TypeVar("T")

log = get_logger("sandq.replication")

METADATA_GROUP: Final = 0
"""Number of the Raft group that holds the metadata."""
SCAN_BYTES = 1 << 40
FIRST_INDEX = 1
"""Index of the first entry of a log, which contains no commands."""
MACHINES: dict[str, type[TimerPartition]] = {
    TIMER: TimerPartition,
    COMPACTED: CompactedPartition,
    PRIORITY: TimerPartition,
    FAIR: TimerPartition,
}
"""State machine of each kind of topic."""


class StoreRows:
    """The rows of one store. Keys are relative to the prefix of the store."""

    def __init__(self, stores: Stores, number: int) -> None:
        self._stores = stores
        self.prefix = store_prefix(number)

    def get(self, key: bytes) -> bytes | None:
        return self._stores.get(self.prefix + key)

    def scan(self, start: bytes, stop: bytes, *, limit: int, max_bytes: int, reverse: bool = False) -> list[Row]:
        prefix, cut = self.prefix, len(self.prefix)
        found = self._stores.scan(prefix + start, prefix + stop, limit=limit, max_bytes=max_bytes, reverse=reverse)
        return [(key[cut:], value) for key, value in found]

    def vacant(self, ranges: Sequence[Bounds]) -> list[bool]:
        prefix = self.prefix
        return self._stores.vacant([(prefix + start, prefix + stop) for start, stop in ranges])


class NoRows:
    """An empty set of rows. A shut replica uses this class, because its stored rows must not be read."""

    def get(self, key: bytes) -> bytes | None:
        return None

    def scan(self, start: bytes, stop: bytes, *, limit: int, max_bytes: int, reverse: bool = False) -> list[Row]:
        return []

    def vacant(self, ranges: Sequence[Bounds]) -> list[bool]:
        return [True] * len(ranges)


def _stored_index(stored: StoreRows) -> int:
    """Return the applied index of rows that cannot be loaded as a partition; 0 if the index cannot be read either."""
    try:
        index = rows.unpack(stored.get(rows.STATE_KEY) or b"")[1]
    except STOPS_NODE:
        raise
    except Exception:
        return 0
    return index if type(index) is int and index >= 0 else 0


class Replica(Protocol):
    """A state machine with its rows.

    Any thread may read `applied_index` and `failure`. All other members are for the thread that applies entries: the
    apply thread, or the event loop while the apply thread is idle.
    """

    store: int
    """Number of the store that contains its rows."""

    @property
    def digests_asked(self) -> list[int]:
        """Numbers of the digests that the applied entry requested. The applier clears the list after each entry."""
        ...

    @property
    def applied_index(self) -> int: ...

    @property
    def failure(self) -> ApplyFailure | None:
        """Why the replica is shut; None if it is open. Any thread may read this."""
        ...

    careful_until: int
    """Raft index up to which the status is computed and the rows are written after every single entry.

    So a failure shows which entry is at fault. With 0, the status is computed and the rows are written for several
    entries at once."""

    def shut(self, step: Step, error: BaseException, *, index: int | None = None) -> None:
        """Stop applying entries, and forget the changes that are not in the rows (ADR 46).

        `index`: index of the failed entry. None: take the last entry whose changes are not in the rows, if there is
        one."""
        ...

    def apply(self, index: int, command: bytes, wanted: bool, skip: Skip | None = None) -> list[Any]:
        """Apply a committed entry, and return one result per command.

        `wanted`: this node must answer the requests of the entry. `skip`: set if the entry is a SKIP."""
        ...

    def needs_no_disk(self, command: bytes) -> bool:
        """Return whether the next entry can be applied quickly and without reading stored rows.

        The next call of `status` must be as quick. `command`: the next entry."""
        ...

    @property
    def unwritten(self) -> int:
        """Approximate number of rows kept in memory until the next `drain`."""
        ...

    @property
    def unwritten_bytes(self) -> int:
        """Upper bound of the bytes of the values of the `unwritten` rows."""
        ...

    def drain(self) -> list[Change]:
        """Return the changed rows since the last call, with absolute keys. The row with the applied index is
        included."""
        ...

    def status(self) -> Any:
        """Return an immutable copy of the state that the event loop needs."""
        ...


def loaded_status(replica: Replica) -> Any:
    """Return the status of a replica that was just loaded. Shut the replica if its status cannot be computed."""
    try:
        return replica.status()
    except Exception as error:
        if isinstance(error, STOPS_NODE) or replica.failure is not None:
            raise
        replica.shut(Step.STATUS, error)
        return replica.status()


@dataclass(frozen=True, slots=True)
class Delivery(LeasedPieces):
    """A lease in the form for its consumer, and the data by which the sender decides when to send the lease."""

    consumer: str
    count: int
    """Number of messages in all pieces."""
    due_ms: int
    """Wall-clock time in ms at which the last message of the lease is due. The lease is not sent earlier."""
    generation: int
    """Generation of the consumer group when the lease was read. A seek that revokes all leases raises the generation.

    If the group's generation has risen before the lease is sent, the lease is revoked: its messages may have been
    cancelled or moved."""
    returning: bool
    """True if the messages of the lease were leased before."""
    repeated: bool
    """True if the lease was pushed before. The lease is pushed again because the earlier push may be lost."""


class PartitionReplica:
    """The replica of a partition."""

    def __init__(
        self,
        stores: Stores,
        store: int,
        group: int,
        partition: int,
        settings: dict[str, Any],
        kind: str = TIMER,
        look_aheads: LookAheads | None = None,
        yield_now: Callable[[], None] | None = None,
    ) -> None:
        """Load the replica from its store. If its rows cannot be loaded, the replica is shut.

        `group`: number of the partition's Raft group. `look_aheads`: the look-aheads of the whole node. `yield_now`:
        see `Applier.yield_now`."""
        self.store = store
        self.failure: ApplyFailure | None = None
        self.careful_until = 0
        self._group = group
        self._rows = StoreRows(stores, store)
        self._view = View(self._rows)
        self._reader = MessageReader()
        self._partition, self._kind = partition, kind
        self._yield_now = yield_now
        self._rows_index = 0
        """Raft index of the last entry whose changes are in the rows."""
        self._last_index: int | None = None
        """Raft index of the last applied entry with commands; None once the changes of this entry are in the rows."""
        self._decoded: tuple[bytes, commands.Entry] | None = None
        """The bytes and the decoded form of the next entry; None once the entry is applied."""
        self.is_mid_entry = False
        """True while an entry is being applied.

        An entry may yield, and a query may run meanwhile. The query must not rely on the leases that the entry has
        granted so far."""
        try:
            self._run(MACHINES[kind].load(partition, settings, self._view, look_aheads))
            self._rows_index = self._machine.applied_index
        except Exception as error:
            if isinstance(error, STOPS_NODE):
                raise
            self._rows_index = _stored_index(self._rows)
            self.shut(Step.LOAD, error)

    def _run(self, machine: TimerPartition) -> None:
        """Use this state machine from now on."""
        self._machine = machine
        if self._yield_now is not None:
            machine.shared.yield_now = self._yield_now
        self._queries = PartitionQueries(machine, self._view)

    @property
    def machine(self) -> TimerPartition:
        """The state machine. Raises Unavailable if the replica is shut, because a shut replica has no valid state."""
        if self.failure is not None:
            raise Unavailable(self.failure.reason)
        return self._machine

    @property
    def queries(self) -> PartitionQueries:
        """The queries of the partition (apply thread).

        Raises Unavailable while the partition's clock is being set back: each step of this work changes the positions
        of messages."""
        self.machine.check_available()
        return self._queries

    @property
    def applied_index(self) -> int:
        return self._machine.applied_index if self.failure is None else self._rows_index

    @property
    def digests_asked(self) -> list[int]:
        return self._machine.digests_asked

    def shut(self, step: Step, error: BaseException, *, index: int | None = None) -> None:
        """Shut the replica (see `Replica.shut`), and replace its state by an empty partition."""
        command = kind = None
        index = self._last_index if index is None else index
        if step is Step.APPLY and self._decoded is not None and index != self._machine.applied_index:
            commands_of = self._decoded[1].commands
            command = len(self._machine.results)
            kind = type(commands_of[command]).__name__ if command < len(commands_of) else None
        self.failure = failure = ApplyFailure.of(
            error,
            group=self._group,
            step=Step.SKIPPED if isinstance(error, AppliedSkipped) else step,
            is_exact=step not in (Step.STATUS, Step.DRAIN) or self.careful_until > 0,
            index=index,
            rows_index=self._rows_index,
            command=command,
            kind=kind,
        )
        log.error(
            "a replica is shut: it could not apply an entry",
            group=self._group,
            partition=self._partition,
            step=failure.step.value,
            index=index,
            rows_index=self._rows_index,
            commands=None if self._decoded is None else described(self._decoded[1].commands, command),
            error=failure.error,
            remedy="see docs/operations/failures.md, shut partitions; the other partitions of this node continue",
            trace=failure.trace,
        )
        self._decoded = None
        self.is_mid_entry = False
        # The old state may include half of an entry, and may be large. So replace the old state by the state of an
        # empty partition.
        self._view = View(NoRows())
        self._run(MACHINES[self._kind](self._partition, parse_settings({}).record()))

    def apply(self, index: int, command: bytes, wanted: bool, skip: Skip | None = None) -> list[Any]:
        """Apply a committed entry (see `Replica.apply`)."""
        machine = self._machine
        if index > max(machine.applied_index, FIRST_INDEX) + 1:
            raise LogGap(f"entry {index} of raft group {self._group} follows entry {machine.applied_index}")
        if not command:
            if skip is not None and index > machine.applied_index and not machine.skips.knows(skip.skip_id):
                raise AppliedSkipped(skip.index)
            machine.applied_index = max(machine.applied_index, index)
            return []
        entry = self._entry(command)
        totals = machine.shared.totals
        counted = totals.counted() if not wanted else None
        self.is_mid_entry = True
        results = machine.apply(index, entry, self._view)
        self._last_index = index
        self.is_mid_entry = False
        self._decoded = None
        if machine.successor is not None:
            self._run(machine.successor)
        for at, (command_of, result) in enumerate(zip(entry.commands, results, strict=True)):
            if isinstance(command_of, commands.Lease) and isinstance(result, list):
                if wanted:
                    # Leave out leases without live messages: a later command of this entry may have ended the lease.
                    results[at] = [self._delivery(lease) for lease in result if lease.live]
                for lease in result:
                    lease.plain = None
        if counted is not None:
            # Do not count the messages here: the node that answers the requests counts them.
            totals.set(counted)
            return []
        return results

    def _entry(self, command: bytes) -> commands.Entry:
        """Decode an entry, or return the result of the last call for the same entry: `needs_no_disk` and `apply` share
        it."""
        if self._decoded is None or self._decoded[0] is not command:
            self._decoded = None
            self._decoded = command, commands.Entry.decode(command)
        return self._decoded[1]

    def needs_no_disk(self, command: bytes) -> bool:
        return bool(command) and self._machine.needs_no_disk(self._entry(command))

    @property
    def unwritten(self) -> int:
        return len(self._view)

    @property
    def unwritten_bytes(self) -> int:
        return self._view.bytes

    def drain(self) -> list[Change]:
        if self.failure is not None:
            return []
        self._machine.write_state(self._view)
        changes = self._view.drain(self._rows.prefix)
        self._rows_index, self._last_index = self._machine.applied_index, None
        return changes

    def status(self) -> Any:
        """Return the status (see `Replica.status`). A shut replica has the status of an empty partition."""
        status = self._machine.status(self._view)
        return status if self.failure is None else replace(status, applied_index=self._rows_index)

    def take_garbage(self) -> list[tuple[bytes, bytes]]:
        """Return the ranges of absolute keys that have deleted rows, for a compaction. Forget these ranges (apply
        thread)."""
        prefix = self._rows.prefix
        return [(prefix + start, prefix + stop) for start, stop in self.machine.log.garbage.take()]

    def held_by(self, group: str, consumer: str, known: set[int], epoch: int = 0) -> Iterator[Delivery]:
        """Yield the live leases of a consumer whose tokens are missing in `known`, because their pushes were lost.

        Each lease is read when it is yielded. `epoch`: yield only leases that were granted at this epoch. 0: yield only
        leases without an epoch. A process with an epoch and a process without an epoch never share leases."""
        for lease in self.machine.leases.live_of(group, consumer):
            if lease.token not in known and epoch == lease.epoch:
                yield self._delivery(lease, repeated=True)

    def holds_otherwise(self, group: str, consumer: str, epoch: int) -> bool:
        """Return whether a consumer has leases of another epoch (apply thread)."""
        return any([lease.epoch != epoch for lease in self.machine.leases.live_of(group, consumer)])

    def is_paused_until(self, group: str, tenant: str | None, until_ms: int) -> bool:
        """Return whether a group, or one tenant of it, is paused until this time or for longer, or does not exist
        (apply thread)."""
        found = self.machine.groups.find(group)
        return found is None or found.is_paused_until(tenant, until_ms)

    def groups_of_leases(self, tokens: Iterable[int]) -> dict[int, str]:
        """Return the consumer group of each of these leases, by token (apply thread)."""
        return self.machine.leases.groups_of(tokens)

    def due_between(self, start_s: int, stop_s: int) -> int:
        """Return the number of messages that are due in the seconds `start_s` (included) to `stop_s` (excluded)."""
        return self.machine.log.counts.between(start_s, stop_s, self._view)

    def values(self, keys: Sequence[bytes], max_bytes: int, now_ms: int = 0) -> list[bytes | None]:
        """Return the rows of these keys in a compacted topic; None for a key without a value (apply thread).

        Stop after the key with which the rows reach `max_bytes`: then the list may be shorter than `keys`. An expired
        value counts as missing. Expiry is checked at the time of the last entry, or at `now_ms` if `now_ms` is
        later."""
        table, late_ms = self._keys(now_ms)
        rows: list[bytes | None] = []
        size = 0
        for key in self.machine.shared.in_slices(keys):
            row = table.get(key, late_ms, self._view)
            rows.append(row)
            size += len(row or b"")
            if size >= max_bytes:
                break
        return rows

    def scan(
        self, start: bytes, stop: bytes | None, limit: int, max_bytes: int, now_ms: int = 0
    ) -> Iterator[tuple[list[Row], bytes | None]]:
        """Scan the keys of a compacted topic: yield the parts of `KeyTable.scan` (apply thread).

        Expired values count as missing, see `values`. After each part, tasks of other groups may run."""
        table, late_ms = self._keys(now_ms)
        for part in table.scan(start, stop, limit=limit, max_bytes=max_bytes, now_ms=late_ms, view=self._view):
            yield part
            self.machine.shared.yield_now()

    def _keys(self, now_ms: int) -> tuple[KeyTable, int]:
        """Return the keys of a compacted topic, and the time in ms at which their values are read."""
        machine = self.machine
        machine.check_open()
        assert isinstance(machine, CompactedPartition)
        return machine.keys, max(now_ms, machine.now_ms)

    def in_slices(self, items: Sequence[T]) -> Iterable[T]:
        """Yield the items of a query. After some items, let tasks of other groups run (apply thread)."""
        return self.machine.shared.in_slices(items)

    def changes(self, watch: Watch, max_messages: int, max_bytes: int) -> Changes:
        """Return changes of a compacted topic (see `sandq.partition.kv.watch.changes`; apply thread)."""
        machine = self.machine
        machine.check_open()
        assert isinstance(machine, CompactedPartition)
        return changes(machine, watch, max_messages, max_bytes, self._view)

    def _delivery(self, lease: Lease, *, repeated: bool = False) -> Delivery:
        """Return a lease with its live messages, in the form for its consumer."""
        live = lease.live
        plain = lease.plain if live.bit_count() == lease.total else None
        kept_of = lease.group_id if lease.kept else None
        pieces = self._reader.pieces(self._view, lease.select(live), kept_of, plain)
        generation = self.machine.groups.by_id[lease.group_id].generation
        return Delivery(
            self._group,
            self.machine.partition,
            lease.token,
            lease.attempt,
            lease.deadline_ms,
            pieces,
            lease.consumer,
            live.bit_count(),
            lease.due_ms,
            generation,
            lease.attempt > 1 or lease.since_ms < lease.leased_ms,
            repeated,
            begin_first=lease.crashes > 0 and lease.handlers > 0,
        )


class MetadataReplica:
    """The replica of the metadata."""

    def __init__(self, stores: Stores, store: int, levels: Levels = KNOWN) -> None:
        """Load the state.

        Raise StartupError if this version does not support the feature level of the state. If the state cannot be read,
        the node does not start: a node without metadata has nothing to serve."""
        self.store = store
        self.failure: ApplyFailure | None = None
        self.careful_until = 0
        self.digests_asked: list[int] = []
        self._prefix = store_prefix(store)
        self._changes: dict[bytes, bytes | None] = {}
        self._stores = stores
        self.state = self._stored(levels)
        self._levels = levels
        self._rows_index = self.state.applied_index
        """Raft index of the last entry whose changes are in the rows."""
        self._entry: metadata_commands.Entry | None = None
        """The entry that is being applied or was applied last; None if that entry has no commands."""
        self._undrained: list[tuple[int, metadata_commands.Entry]] = []
        """Entries whose changes are not in the rows yet. These entries are few and small."""

    def _stored(self, levels: Levels) -> MetadataState:
        """Load the state from the rows."""
        stop = store_prefix(self.store + 1)
        found = self._stores.scan(self._prefix, stop, limit=SCAN_BYTES, max_bytes=SCAN_BYTES)
        return MetadataState.load([(key[len(self._prefix) :], value) for key, value in found], levels)

    @property
    def applied_index(self) -> int:
        return self.state.applied_index if self.failure is None else self._rows_index

    def shut(self, step: Step, error: BaseException, *, index: int | None = None) -> None:
        """Shut the replica (see `Replica.shut`), and return to the state before the failed entry."""
        if index is None or step in (Step.STATUS, Step.DRAIN):
            index = self._culprit()
        command: int | None = None
        found: Sequence[metadata_commands.Command] = ()
        if step is Step.APPLY and self._entry is not None:
            found = self._entry.commands
            command = len(self.state.results) if self.state.applied_index != index else None
        self.failure = failure = ApplyFailure.of(
            error,
            group=METADATA_GROUP,
            step=Step.SKIPPED if isinstance(error, AppliedSkipped) else step,
            index=index,
            rows_index=self._rows_index,
            command=command,
            kind=type(found[command]).__name__ if command is not None and command < len(found) else None,
        )
        self._rebuild([pair for pair in self._undrained if index is None or pair[0] < index])
        log.error(
            "the metadata is shut on this node: it could not apply an entry",
            step=failure.step.value,
            index=index,
            rows_index=self._rows_index,
            commands=described(found, command),
            error=failure.error,
            remedy="see docs/operations/failures.md, shut partitions; partitions continue with the last state",
            trace=failure.trace,
        )

    def _culprit(self) -> int | None:
        """Apply the unwritten entries again one by one. Return the index of the first entry that fails.

        An entry also fails if the status or the rows after the entry cannot be computed. If no entry fails, return the
        index of the last unwritten entry; None if there is none. The state is invalid after this call."""
        self.state = self._stored(self._levels)
        for index, entry in self._undrained:
            try:
                self.state.apply(index, entry, self._put)
                self.status()
                self.state.write_state(self._put)
            except Exception:
                return index
        return self._undrained[-1][0] if self._undrained else None

    def _rebuild(self, undrained: Sequence[tuple[int, metadata_commands.Entry]]) -> None:
        """Return to the state in the rows, and apply the entries `undrained` again.

        The changes of these entries are written later. Clients have seen these changes, so the changes must survive
        until the replica is opened again."""
        self._changes.clear()
        self._undrained = []
        self.state = self._stored(self._levels)
        try:
            for at, entry in undrained:
                self.state.apply(at, entry, self._put)
        except Exception as error:
            log.error("the metadata continues with the older state in its rows", error=repr(error))
            self._changes.clear()
            self.state = self._stored(self._levels)

    def apply(self, index: int, command: bytes, wanted: bool, skip: Skip | None = None) -> list[Any]:
        """Apply a committed entry (see `Replica.apply`).

        Raise UnknownLevel if the entry raises the feature level above the levels of this version."""
        self._entry = None
        if not command:
            if skip is not None and index > self.state.applied_index and skip.skip_id not in self.state.skips:
                raise AppliedSkipped(skip.index)
            self.state.applied_index = max(self.state.applied_index, index)
            return []
        self._entry = entry = metadata_commands.Entry.decode(command)
        self.check(entry)
        results = self.state.apply(index, entry, self._put)
        # Encode the state before the results are published. If encoding fails, the group may skip the entry, and assign
        # the same numbers (of Raft groups, for example) again. So no client may see these numbers before.
        self.state.write_state(self._put)
        self._undrained.append((index, entry))
        return results

    def needs_no_disk(self, command: bytes) -> bool:
        return False  # computing the status takes longer in a large cluster

    def check(self, entry: metadata_commands.Entry) -> None:
        """Raise UnknownLevel if this entry raises the feature level above the levels of this version."""
        if entry.raised_to:
            try:
                check_level(entry.raised_to, self._levels)
            except StartupError as error:
                raise UnknownLevel(error.message, **error.details) from error

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._changes[self._prefix + key] = value

    @property
    def unwritten(self) -> int:
        return max(len(self._changes), int(self._is_ahead))  # some entries change only the state's own row

    @property
    def _is_ahead(self) -> bool:
        """Whether the changes of applied entries are not in the rows yet."""
        return self.state.applied_index > self._rows_index

    @property
    def unwritten_bytes(self) -> int:
        return sum([len(value or b"") for value in self._changes.values()])

    def drain(self) -> list[Change]:
        """Return the changed rows (see `Replica.drain`). A shut replica returns the changes before the failed entry."""
        if self.failure is not None and not self._is_ahead:
            return []
        self.state.write_state(self._put)
        changes = list(self._changes.items())
        self._changes.clear()
        self._rows_index = self.state.applied_index
        self._undrained.clear()
        return changes

    def status(self) -> Any:
        """Return the status (see `Replica.status`). A shut replica has the status before the failed entry."""
        state = self.state
        return MetadataView(
            applied_index=state.applied_index,
            cluster_uuid=state.cluster_uuid,
            next_group=state.next_group,
            topics=dict(state.topics),
            nodes=dict(state.nodes),
            removed=dict(state.removed),
            balanced=state.balanced,
            partition_of_group=dict(state.partition_of_group),
            feature_level=state.feature_level,
            pushes=dict(state.pushes),
            identities=dict(state.identities),
            roles=dict(state.roles),
            skipped=frozenset(state.skips.values()) - {b""},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataView:
    """The status of a `MetadataReplica`."""

    applied_index: int
    cluster_uuid: str | None
    next_group: int
    """Number of the next Raft group. If a lower number belongs to no topic, its group was deleted together with its
    topic."""
    topics: dict[str, Topic]
    nodes: dict[str, NodeRecord]
    removed: dict[str, RemovedNode]
    balanced: tuple[str, ...]
    """Nodes over which the controller last spread the partitions evenly; empty while it moves partitions."""
    partition_of_group: dict[int, tuple[str, int]]
    """Topic and partition, by Raft group."""
    feature_level: int
    pushes: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict, repr=False)
    """Push settings by topic and group. The settings contain secrets."""
    identities: dict[str, IdentityRecord] = field(default_factory=dict)
    """Identities by principal."""
    roles: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Grants of each custom role, by name of the role."""
    skipped: frozenset[bytes] = frozenset()
    """Digests of the latest commands that an operator skipped. A command with such a digest is refused (ADR 46)."""

    def partition(self, group: int) -> Partition | None:
        """Return the partition of a Raft group; None if the group has no partition (any more)."""
        found = self.partition_of_group.get(group)
        return self.topics[found[0]].partitions[found[1]] if found is not None else None
