"""Send the outboxes of partitions that this node leads. The receivers are the leaders of the target partitions.

For each pair of partitions, one batch is in progress at a time. The batch is sent again until its outcome is known.
Nodes exchange `OUTBOX_BATCH` and `OUTBOX_ANSWER`. The sending partition is an idempotent producer of the target
partition, with an id that clients may not use (`model.outbox`). So a batch that is sent twice is stored once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

import trio

from sandq.broker.catalog import Catalog, OpenTopic
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.fair_queue import BEHIND
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import (
    AlreadyStored,
    Conflict,
    InvalidRequest,
    NotFound,
    NotLeader,
    OutOfSequence,
    SandqError,
    TimedOut,
    Unavailable,
    UnknownTopic,
    from_wire,
    to_wire,
)
from sandq.model.limits import DEFAULT
from sandq.model.logger import get_logger
from sandq.model.outbox import Target, is_reserved, reserved_producer
from sandq.model.sequence import sequence_of
from sandq.partition import commands as c
from sandq.partition.outbox import OutboxStatus
from sandq.partition.produce_validation import check_batch
from sandq.protocol.peer import PeerFrame

log = get_logger("sandq.broker")

SENDING: Final = 16
"""Maximum number of batches that are being read or sent at the same time, for all partitions that this node leads."""
ANSWER_S: Final = 10.0
"""Time in s within which another node must answer. After this time, the batch is sent again."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
"""Longest pause in s after a transient error. The pause doubles with each further error."""
LOGGED_TRIES: Final = 30
"""Number of attempts between two warnings in the log. These attempts take about a minute."""
NUMBER: Final = sequence_of(1)
"""Sequence number of each batch: there is only one batch in an epoch."""
_LIMITS: Final = replace(
    DEFAULT,
    message_bytes=DEFAULT.batch_bytes,
    key_bytes=DEFAULT.batch_bytes,
    headers_bytes=DEFAULT.batch_bytes,
    delay_days=4_000_000,
)
"""Limits for batches of the outbox: the limits of the format, instead of the configured limits of a node.

The messages were checked when they were accepted. If the reply for a stored batch is lost, the batch is sent again. A
new leader with lower limits could refuse the batch although it is stored. The messages would then be sent in smaller
batches, and would be stored twice."""
_BATCH_FIELDS: Final = [int, int, int, int, bytes]


@dataclass(slots=True)
class Stuck:
    """A batch that its target partition has not stored yet: number of attempts, and the last error."""

    tries: int
    error: str


class OutboxSender:
    """Sends the outbox batches of all partitions that this node leads."""

    def __init__(
        self,
        own: str,
        catalog: Catalog,
        runner: Runner,
        clock: GuardedClock,
        links: PeerLinks,
        nursery: trio.Nursery,
    ) -> None:
        """`own`: id of this node. `nursery` must outlive every connection."""
        self._own = own
        self._catalog = catalog
        self._runner = runner
        self._clock = clock
        self._links = links
        self._nursery = nursery
        self._sending = trio.Semaphore(SENDING)
        self._busy: WeakKeyDictionary[PartitionLeader, set[Target]] = WeakKeyDictionary()
        """Targets to which batches are being sent, by partition."""
        self._stuck: WeakKeyDictionary[PartitionLeader, dict[Target, Stuck]] = WeakKeyDictionary()
        self._numbers = count(secrets.randbits(62))  # random: replies to a previous process match no number
        self._answers: dict[int, tuple[str, Callable[[SandqError | None], None]]] = {}
        """By number of the sent batch: (node to which it was sent, callback for the error in the reply, or None)."""

    # -- sending --------------------------------------------------------------------------------------------------

    def on_change(self, leader: PartitionLeader) -> None:
        """Start to send those batches of a partition that are not being sent yet. This node leads the partition. Called
        after each change of the partition."""
        status: OutboxStatus | None = leader.raft_group.status.outbox
        if status is None or self._nursery.cancel_scope.cancel_called:
            return  # the outbox is empty, or this node is stopping: then the next leader sends
        busy = self._busy.setdefault(leader, set())
        for target in status.batches.keys() - busy:
            busy.add(target)
            self._nursery.start_soon(self._keep_sending, leader, target)

    def stuck(self, leader: PartitionLeader) -> Mapping[Target, Stuck]:
        """Return the batches that could not be sent yet, by target. `leader`: a partition that this node leads."""
        return self._stuck.get(leader, {})

    async def _keep_sending(self, leader: PartitionLeader, target: Target) -> None:
        """Send the batches for a target, one after the other, until none is left."""
        pause_s, stuck = FIRST_PAUSE_S, Stuck(0, "")
        try:
            while not leader.closed and leader.raft_group.works:
                epoch = self._epoch(leader, target)
                if epoch is None:
                    return
                error = await self._try(leader, target, epoch)
                if error is None:
                    pause_s, stuck = FIRST_PAUSE_S, Stuck(0, "")
                    self._stuck.get(leader, {}).pop(target, None)
                    continue
                stuck = Stuck(stuck.tries + 1, error.message)
                self._stuck.setdefault(leader, {})[target] = stuck
                if stuck.tries % LOGGED_TRIES == 0:
                    log.warning("the outbox waits", to=list(target), tries=stuck.tries, error=error.message)
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._busy[leader].discard(target)
            self._stuck.get(leader, {}).pop(target, None)
        # A batch that came after the last check found this target busy, so no task sends it yet.
        if self._epoch(leader, target) is not None and leader.raft_group.works and not leader.closed:
            self.on_change(leader)

    @staticmethod
    def _epoch(leader: PartitionLeader, target: Target) -> int | None:
        """Return the epoch of the batch for a target; None if there is no batch."""
        status: OutboxStatus | None = leader.raft_group.status.outbox
        return None if status is None else status.batches.get(target)

    async def _try(self, leader: PartitionLeader, target: Target, epoch: int) -> SandqError | None:
        """Send a batch and record the outcome.

        If the batch must be sent again, return the transient error, else None."""
        try:
            async with self._sending:
                refusal = await self._outcome(leader, target, epoch)
            command: c.OutboxSent | c.OutboxRefused = c.OutboxSent(*target, epoch)
            if refusal is not None:
                command = c.OutboxRefused(*target, epoch, refusal or None)
                log.warning("a batch of the outbox is refused", to=list(target), epoch=epoch, error=refusal)
            await leader.raft_group.call(command, BEHIND)
        except SandqError as error:
            return error
        except Exception as error:
            # The outbox is the only copy of these messages: try again, and log the error.
            log.exception("the outbox failed unexpectedly", to=list(target), epoch=epoch)
            return Unavailable(f"an unexpected error; see the log of the node: {error!r}")
        # The next attempt uses another epoch. Return an error, so that there is a pause before the next attempt.
        return Unavailable("it is sent again in another epoch") if refusal == "" else None

    async def _outcome(self, leader: PartitionLeader, target: Target, epoch: int) -> str | None:
        """Send a batch. Return None if it is stored.

        If the batch must be sent again in another epoch, return "". If the batch can never be stored, return the
        reason. Raise transient errors."""
        try:
            topic = await self._topic(target)
            replica = leader.raft_group.replica
            assert isinstance(replica, PartitionReplica)
            read = partial(_read, replica, target, epoch)
            batch = await self._runner.ask(read, group=leader.raft_group.number, patient=False)
            if batch is None:
                raise Unavailable("the batch is over")  # the status will soon show the next batch
            if not batch:
                return None  # all its messages were withdrawn: there is nothing to store
            await self._deliver(topic, target.partition, reserved_producer(leader.raft_group.number), epoch, batch)
        except AlreadyStored:
            return None
        except OutOfSequence:
            return ""
        except Conflict:
            # Either the epoch is fenced, or one partition was set back by force, and other messages have this epoch and
            # number.
            return ""
        except (InvalidRequest, NotFound) as error:
            return error.message
        return None

    async def _topic(self, target: Target) -> OpenTopic:
        """Return the target topic of a batch. Raise UnknownTopic if the topic was certainly deleted; Unavailable if
        that is unknown."""
        found = self._find(target)
        if found is None:
            # This node may not know the topic yet.
            await self._catalog.catch_up()
            found = self._find(target)
        if found is None:
            raise UnknownTopic("its target topic was deleted")
        return found

    def _find(self, target: Target) -> OpenTopic | None:
        """Return the open topic with the target's number; None if this node does not know it."""
        for topic in self._catalog.topics.values():
            if topic.record.number == target.topic:
                return topic
        return None

    async def _deliver(self, topic: OpenTopic, partition: int, producer_id: int, epoch: int, batch: bytes) -> None:
        """Send a batch to the leader of a partition, and wait until the batch is stored.

        If the leader refuses the batch, raise the leader's error. Raise TimedOut if there is no answer."""
        answered, answers = trio.Event(), []

        def done(error: SandqError | None) -> None:
            answers.append(error)
            answered.set()

        number, group = next(self._numbers), topic.record.partitions[partition].group
        node = self._catalog.leader(topic, partition)
        if node is None:
            raise NotLeader("its target partition has no leader, as far as this node knows")
        self._answers[number] = node, done
        try:
            if node == self._own:
                self._store(group, producer_id, epoch, batch, done)
            elif not self._links.accepts(node) or not self._links.send(
                node, PeerFrame.OUTBOX_BATCH, (number, group, producer_id, epoch, batch)
            ):
                raise Unavailable(f"node {node} cannot be reached, or accepts no data at present")
            with trio.move_on_after(ANSWER_S):
                await answered.wait()
        finally:
            del self._answers[number]
        if not answers:
            raise TimedOut(f"node {node} did not answer in {ANSWER_S:g} s")
        if answers[0] is not None:
            raise answers[0]

    # -- storing --------------------------------------------------------------------------------------------------

    def _store(
        self, group: int, producer_id: int, epoch: int, batch: bytes, done: Callable[[SandqError | None], None]
    ) -> None:
        """Store a batch of another partition's outbox in a partition that this node leads. Call `done` with the error,
        or None."""
        try:
            leader = self._catalog.by_group.get(group)
            if leader is None:
                raise NotLeader("the partition is not on this node")
            leader.raft_group.check_ready()
            name, partition = self._catalog.view.partition_of_group[group]
            batch_target = self._catalog.topics[name].targets[partition]
            # A refusal would lose messages of the outbox. So check leniently (`is_checked`): headers of messages from a
            # restored backup may have any form.
            checked = check_batch(batch, self._clock.now_ms(), _LIMITS, batch_target, is_checked=True)
            command = c.Append(batch, producer_id, epoch, NUMBER, c.REJECT, checked.split)
            leader.raft_group.submit(
                command, partial(_stored, done), size=len(batch), messages=checked.messages, line=BEHIND
            )
        except KeyError:
            done(NotLeader("the partition is being opened, or was removed"))
        except SandqError as error:
            done(error)

    # -- frames ---------------------------------------------------------------------------------------------------

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Handle a frame from another node. Return True if the frame is well-formed and for this component."""
        if not isinstance(body, tuple):
            return False
        if kind == PeerFrame.OUTBOX_BATCH and [type(part) for part in body] == _BATCH_FIELDS:
            number, group, producer_id, epoch, batch = body
            if not is_reserved(producer_id):
                return False
            self._store(group, producer_id, epoch, batch, partial(self._answer, node, number))
            return True
        if kind == PeerFrame.OUTBOX_ANSWER and len(body) == 2 and type(body[0]) is int:
            error = None if body[1] is None else _error(body[1])
            asked, answer = self._answers.get(body[0], (None, None))
            if answer is not None and asked == node:  # otherwise the reply came too late, and the batch is sent again
                answer(error)
            return True
        return False

    def _answer(self, node: str, number: int, error: SandqError | None) -> None:
        """Reply to the node that sent a batch: None, or the error."""
        record = None if error is None else to_wire(error)[:3]
        with suppress(SandqError):  # without a link there is no reply, and the batch is sent again
            self._links.send(node, PeerFrame.OUTBOX_ANSWER, (number, record))


def _read(replica: PartitionReplica, target: Target, epoch: int) -> bytes | None:
    """Return a batch of the outbox; None if the batch is done, empty if all its messages were withdrawn.

    Runs on the apply thread."""
    return replica.queries.outbox_batch(target, epoch)


def _stored(done: Callable[[SandqError | None], None], result: Any) -> None:
    """Call `done` with the error of a command, or None."""
    done(result if isinstance(result, SandqError) else None)


def _error(record: Any) -> SandqError:
    """Return the error in a reply. A malformed error counts as transient."""
    if isinstance(record, tuple) and [type(part) for part in record] == [str, str, bool]:
        code, message, is_retriable = record
        return from_wire(code, message, is_retriable, None)
    return Unavailable("the answer cannot be read")
