"""Topics made, changed and deleted, and nodes drained and removed: changes of metadata, by the node that leads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import structlog
import trio

from sandq.broker.backups.whole_restores import WholeRestores
from sandq.broker.catalog import Catalog
from sandq.broker.controller.topic_restores import TopicRestores, check_not_restoring
from sandq.broker.controller.topics_under_way import TopicsUnderWay
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.routes import Routes
from sandq.broker.reads.fan_out import call_all
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView
from sandq.metadata import commands as m
from sandq.metadata.placement import Candidate, choose
from sandq.metadata.planning import candidates, slots
from sandq.metadata.records import DRAINING, IN, REMOVING, NodeRecord, Partition, Topic
from sandq.metadata.state import holds
from sandq.model.auto_create import NO_AUTO_CREATE, AutoCreate
from sandq.model.caller import ANONYMOUS, NODE, Caller
from sandq.model.errors import (
    Conflict,
    InvalidRequest,
    InvalidSetting,
    NotFound,
    NotLeader,
    Overloaded,
    SandqError,
    TimedOut,
    TooLarge,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from sandq.model.group_limits import GROUP_LIMITS, parse_limit, with_limit
from sandq.model.health import DEFAULT_REPLICAS
from sandq.model.limits import Limits
from sandq.model.members import node_of
from sandq.model.names import AUTO_CREATED, COMPACTED, check_name
from sandq.model.offsets import PARTITION_MAX
from sandq.model.outbox import DEAD_LETTER, DEAD_LETTER_TOPIC, DeadLetterTopic
from sandq.model.push import changed_push, shown
from sandq.model.push_targets import PushRules, Target, TargetRefused, shown_url
from sandq.model.settings import CLASSES, parse_settings, update_settings
from sandq.partition import commands as c
from sandq.protocol.requests_admin import (
    REMOVE,
    UNDRAIN,
    GroupLimit,
    GroupPush,
    NodeChange,
    Rebuild,
    TopicCreate,
    TopicDelete,
    TopicEnsure,
    TopicUpdate,
    Transfer,
)

log = structlog.get_logger("sandq.broker")
T = TypeVar("T")

LEADERS_WAIT_S = 10.0
"""For all partitions of a new topic to be led, or one by the node that is to."""
OTHERS_WAIT_S = 2.0
"""For the other nodes to know of a change before it is answered."""
DROP_WAIT_S = 30.0
"""For a group to let a member go whose replica is to be made anew."""
TOPICS_NAMED: Final = 8
"""Topics that a message names."""
NODES_NAMED: Final = 8
"""Nodes that a message names, of all that are full."""


class Administration(TopicRestores):
    """Every change is made from its start to its end, one at a time, whatever becomes of who asked for it. All raise
    NotLeader, StorageFailed, and TimedOut where the outcome is unknown."""

    def __init__(
        self,
        *,
        node_log: NodeLog,
        catalog: Catalog,
        progress: MetadataProgress,
        routes: Routes,
        limits: Limits,
        up: Callable[[], Collection[str]],
        nursery: trio.Nursery,
        push_rules: PushRules,
        restores: WholeRestores,
        auto_create: AutoCreate = NO_AUTO_CREATE,
    ) -> None:
        """`up`: the nodes that can be reached, this one included. `nursery` outlives every connection. `auto_create`:
        which topics are made when they are used."""
        self._push_rules = push_rules
        self._restores = restores
        self._node_log = node_log
        self._catalog = catalog
        self._progress = progress
        self._routes = routes
        self._limits = limits
        self._up = up
        self._nursery = nursery
        self._auto_create = auto_create
        self.auto_created = 0
        self._under_way = TopicsUnderWay(limits.auto_created_topics)
        """Topics that were made here because somebody used them."""
        self._one = trio.Lock()
        self._rebuilding: set[int] = set()

    @property
    def _metadata(self) -> RaftGroup:
        return self._node_log.metadata

    @property
    def _view(self) -> MetadataView:
        view: MetadataView = self._metadata.status
        return view

    def _check_ready(self) -> None:
        """Raises NotLeader; Unavailable while nobody can change anything."""
        try:
            self._metadata.check_ready()
        except NotLeader:
            leader, up = self._metadata.leader, set(self._up())
            voters = [node_of(voter) for voter in self._metadata.members.voters]
            there = [node for node in voters if node in up]
            if leader not in up and 2 * len(there) <= len(voters):
                raise Unavailable(
                    f"nothing can be changed: of the {len(voters)} nodes that vote on what the cluster is, "
                    f"{len(voters) - len(there)} cannot be reached from here, and a majority must be there"
                ) from None
            raise

    # -- topics ---------------------------------------------------------------------------------------------------

    async def create_topic(self, request: TopicCreate, caller: Caller) -> Topic:
        """Returns once the topic takes messages. Raises InvalidRequest, TopicExists; Conflict while not every node can
        have such a topic."""
        name, kind, partitions = request.name, request.kind, request.partitions
        check_name("topic", name)
        if kind not in CLASSES:
            raise InvalidRequest(f"kind {kind!r} is not known; this version has: {', '.join(CLASSES)}")
        record = self._checked(request)
        replicas = self._replicas(request.replicas)

        async def create() -> Topic:
            if name in self._view.topics:
                raise TopicExists(f"there is a topic {name!r} already", topic=name)
            topic = await self._create(name, kind, partitions, replicas, record, caller)
            log.info("topic created", topic=name, partitions=partitions, replicas=replicas)
            return topic

        return await self._whole(create)

    def _checked(self, request: TopicCreate) -> dict[str, Any]:
        """The settings' record of a topic that is to be made, if there can be such a topic."""
        self._check_partitions(request.partitions)
        self._check_ready()
        return parse_settings(request.settings, request.kind).record()

    async def _create(
        self, name: str, kind: str, partitions: int, replicas: int, record: dict[str, Any], caller: Caller
    ) -> Topic:
        self._find_dead_letter_topic(name, record)
        self._check_total("topics", len(self._view.topics) + 1)
        self._check_room(partitions)
        placement = await self._place(partitions, replicas)
        topic: Topic = await self._change(m.CreateTopic(name, kind, replicas, placement, record, self._owner(caller)))
        await self._until_led(topic)
        return topic

    def _owner(self, caller: Caller) -> str | None:
        """Who owns what a caller creates; None: nobody that may have a quota."""
        if caller.principal in (ANONYMOUS, NODE.principal):
            return None
        return caller.principal

    async def ensure_topic(self, request: TopicEnsure, caller: Caller) -> Topic:
        """The topic of this name, made as the configuration of this node says if there is none: once, however many ask
        for it. Raises UnknownTopic when the configuration makes none of this name; TooLarge when as many were made so
        as may be; and as `create_topic`."""
        name, auto_create = check_name("topic", request.name), self._auto_create
        self._check_ready()
        if (there := self._view.topics.get(name)) is not None:
            return there
        if not auto_create.matches(name):
            raise UnknownTopic(
                f"there is no topic {name!r}, and auto_create_topics of {self._node_log.node_id}, which makes them at "
                f"present, has none like that ({auto_create}): create it, or give all nodes the same patterns",
                topic=name,
            )
        # Known here, and so no turn is waited for to hear it.
        while (there := self._view.topics.get(name)) is None:
            self._check_total("auto_created_topics", self._under_way.made(self._view) + 1)
            if not await self._under_way.until_ended(name):
                with self._under_way.attempt(name, self._view):
                    return await self._ensure(name, caller)
            self._check_ready()
        return there

    async def _ensure(self, name: str, caller: Caller) -> Topic:
        auto_create = self._auto_create

        async def ensure() -> Topic:
            if (there := self._view.topics.get(name)) is not None:
                return there
            self._check_total("auto_created_topics", self._under_way.made(self._view) + 1)
            wanted = TopicCreate(
                name, auto_create.kind, auto_create.partitions, auto_create.replicas, auto_create.settings
            )
            record = {**self._checked(wanted), AUTO_CREATED: True}
            replicas = self._replicas(wanted.replicas)
            topic = await self._create(name, wanted.kind, wanted.partitions, replicas, record, caller)
            self.auto_created += 1
            log.info(
                "topic created, for it is used",
                topic=name,
                partitions=wanted.partitions,
                replicas=replicas,
                principal=caller.principal,
                peer=caller.address,
            )
            return topic

        return await self._whole(ensure)

    async def update_topic(self, request: TopicUpdate, caller: Caller) -> Topic:
        """Change some settings, how many nodes are to hold each partition, and add partitions. Raises UnknownTopic,
        InvalidSetting, InvalidRequest."""
        name, partitions, replicas = request.name, request.partitions, request.replicas
        self._check_ready()
        if partitions is not None:
            self._check_partitions(partitions)
        if replicas is not None:
            self._replicas(replicas)

        async def update() -> Topic:
            old = self._catalog.topic(name).record
            check_not_restoring(old)
            record = update_settings(old.settings, request.settings, old.kind).record()
            if GROUP_LIMITS in old.settings:
                record[GROUP_LIMITS] = old.settings[GROUP_LIMITS]
            if DEAD_LETTER_TOPIC in request.settings:
                self._find_dead_letter_topic(name, record)
            elif DEAD_LETTER in old.settings:
                record[DEAD_LETTER] = old.settings[DEAD_LETTER]
            there, copies = len(old.partitions), replicas or old.replicas
            more = (partitions or there) - there
            if more and old.kind == COMPACTED:
                raise InvalidRequest(
                    f"topic {name!r} has {there} partitions for ever: it is compacted, and its keys are where they "
                    "were put; make another topic and copy what this one holds",
                    topic=name,
                )
            if more < 0:
                raise InvalidRequest(f"topic {name!r} has {there} partitions; they cannot become fewer", topic=name)
            self._check_room(more)
            added = await self._place(more, copies, old) if more or copies > old.replicas else []
            topic: Topic = await self._change(m.UpdateTopic(name, record, copies, there, added))
            await self._configure(name, record)
            await self._until_led(topic)
            log.info("topic updated", topic=name, partitions=len(topic.partitions), replicas=copies)
            return topic

        return await self._whole(update)

    async def limit_group(self, request: GroupLimit, caller: Caller) -> None:
        """Give a group of a topic other limits over all partitions, or none; it need not be there. Raises UnknownTopic,
        InvalidSetting, InvalidRequest."""
        name, group = request.topic, check_name("group", request.group)
        limit = parse_limit(request.limits)
        self._check_ready()

        async def change() -> None:
            old = self._catalog.topic(name).record
            if old.kind == COMPACTED:
                raise InvalidRequest(f"topic {name!r} is compacted: its groups have no limits", topic=name)
            partitions = len(old.partitions)
            record = with_limit(old.settings, group, partitions, limit)
            if record == old.settings:
                return
            await self._change(m.UpdateTopic(name, record, old.replicas, partitions))
            await self._configure(name, record)
            log.info("group limited", topic=name, group=group, limits=limit)

        await self._whole(change)

    async def push_group(self, request: GroupPush, caller: Caller) -> dict[str, Any] | None:
        """Have the messages of a group pushed to a URL, change how, or (None) end that; what holds from now on, without
        its secrets. The group need not be there yet. Raises UnknownTopic, InvalidSetting,
        InvalidRequest."""
        name, group = request.topic, check_name("group", request.group)
        self._check_ready()

        async def change() -> dict[str, Any] | None:
            self._catalog.topic(name)
            old = self._view.pushes.get((name, group))
            if request.push is None:
                if old is not None:
                    await self._change(m.SetPush(name, group, None))
                    log.info("group is not pushed any more", topic=name, group=group)
                return None
            push = changed_push(old, request.push)
            if request.push.get("url") is not None:
                try:
                    self._push_rules.check(Target.parse(push["url"]))
                except TargetRefused as error:
                    raise InvalidSetting(error.message, mistakes=[error.message]) from None
            if push != old:
                await self._change(m.SetPush(name, group, push))
                log.info("group is pushed", topic=name, group=group, url=shown_url(push["url"]))
            return shown(push)

        return await self._whole(change)

    async def _configure(self, name: str, record: dict[str, Any]) -> None:
        """Have the partitions of a topic that this node leads go by these settings."""
        hosts = [leader.raft_group for leader in self._catalog.topic(name).led().values()]
        await call_all([(host, c.Configure(record)) for host in hosts if host.status.settings != record])

    async def delete_topic(self, request: TopicDelete, caller: Caller) -> None:
        """Returns once the topic is gone; its space is reclaimed later. Raises UnknownTopic; Conflict while it is the
        dead letter topic of another one."""
        self._check_ready()

        async def delete() -> None:
            self._check_no_dead_letters_come(request.name)
            await self._change(m.DeleteTopic(request.name))
            log.info("topic deleted", topic=request.name)

        await self._whole(delete)

    def _find_dead_letter_topic(self, name: str, record: dict[str, Any]) -> None:
        """Put into the settings' record of a topic where its dead letters go, if it names a topic for them. Raises
        InvalidSetting."""
        wanted = record.get(DEAD_LETTER_TOPIC)
        if wanted is None:
            return
        topic = self._view.topics.get(wanted)
        mistake = None
        if wanted == name:
            mistake = "a topic's dead letters go to another one"
        elif topic is None:
            mistake = f"there is no topic {wanted!r}; create it first"
        elif topic.kind == COMPACTED:
            mistake = f"topic {wanted!r} is compacted, and keeps of each key only the last message: take another kind"
        elif name in (chain := self._dead_letter_topics(wanted)):
            mistake = f"dead letters would come back: those of {' go to '.join([wanted, *chain])}"
        if mistake is not None:
            raise InvalidSetting(f"{DEAD_LETTER_TOPIC}: {mistake}", mistakes=[f"{DEAD_LETTER_TOPIC}: {mistake}"])
        assert topic is not None
        record[DEAD_LETTER] = [topic.number, topic.initial_partitions, topic.kind, name]

    def _dead_letter_topics(self, name: str) -> list[str]:
        """Where dead letters of a topic go, where those of that topic go, and so on."""
        found: list[str] = []
        while (topic := self._view.topics.get(name)) is not None and name not in found[:-1]:
            name = topic.settings.get(DEAD_LETTER_TOPIC, "")
            if not name:
                break
            found.append(name)
        return found

    def _check_no_dead_letters_come(self, name: str) -> None:
        """Raises Conflict while a topic is the dead letter topic of others."""
        topic = self._view.topics.get(name)
        if topic is None:
            return  # that is told by who deletes it
        senders = sorted(
            [other.name for other in self._view.topics.values() if _sends_to(other.settings, topic.number)]
        )
        if senders:
            more = f" and {len(senders) - TOPICS_NAMED} more" if len(senders) > TOPICS_NAMED else ""
            raise Conflict(
                f"topic {name!r} is the dead letter topic of {', '.join(senders[:TOPICS_NAMED])}{more}: give these "
                "another one, or none, first",
                topic=name,
            )

    def _check_partitions(self, partitions: int) -> None:
        if not 1 <= partitions <= self._limits.partitions_per_topic:
            raise InvalidRequest(
                f"a topic of {partitions} partitions; 1 to {self._limits.partitions_per_topic} are allowed "
                "(limits.partitions_per_topic): take fewer, or raise it in the configuration of every node, up to "
                f"{PARTITION_MAX + 1}"
            )

    def _check_room(self, more: int) -> None:
        """Whether there may be so many partitions more."""
        if more:
            self._check_total("partitions", sum(len(topic.partitions) for topic in self._view.topics.values()) + more)

    def _check_total(self, what: str, count: int) -> None:
        most = getattr(self._limits, what)
        if count > most:
            raise TooLarge(
                f"the cluster would have {count} {what}; {most} are allowed (limits.{what}): delete some, or raise it "
                "in the configuration of every node",
                limit=what,
                maximum=most,
                size=count,
            )

    def _replicas(self, wanted: int | None) -> int:
        """Return how many replicas a topic gets: as many as are wanted, or else the default for this cluster.

        Raises InvalidRequest if there are too few nodes; Unavailable while the cluster is being formed.
        """
        nodes = self._view.nodes
        # One that cannot be reached may never be registered.
        voters = {node_of(member) for member in self._metadata.group.members.voters}
        absent = sorted(voters & set(self._up()) - nodes.keys())
        if absent:
            raise Unavailable(f"the cluster is being formed: {', '.join(absent)} is not registered yet; try again")
        able = [node for node in nodes.values() if node.standing == IN]
        if wanted is None:
            return DEFAULT_REPLICAS if len(able) >= DEFAULT_REPLICAS else 1
        if not 1 <= wanted <= len(able):
            leaving = f", {len(nodes) - len(able)} of which leave" if len(able) < len(nodes) else ""
            raise InvalidRequest(
                f"{wanted} replicas, and {len(nodes)} nodes are registered{leaving}: a node holds one at most"
            )
        return wanted

    async def _place(self, partitions: int, replicas: int, topic: Topic | None = None) -> list[list[str]]:
        """Where new partitions go; those that the topic has get as many replicas. Raises InvalidRequest, TooLarge."""
        view = self._view
        # However long a node has failed: if there are too few others it is to hold them when it is back.
        most = self._limits.partitions_per_node
        there: list[Candidate] = [found for found in candidates(view.nodes, 0, 1, most) if not found.leaves]
        groups = range(view.next_group, view.next_group + partitions)
        if len(there) < replicas:
            raise InvalidRequest(f"{replicas} replicas, and {len(there)} nodes are there to hold them: add some first")
        raised = {placed.group for placed in topic.partitions} if topic and replicas > topic.replicas else set()
        there_slots = slots(view.topics.values(), ())
        chosen = partial(choose, there_slots, there, groups, replicas, raised)
        choice = await trio.to_thread.run_sync(chosen)
        self._check_nodes(choice.before, choice.after)
        return choice.added

    def _check_nodes(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Raise TooLarge if a node would hold more partitions than it may: it was chosen as no other one has room.
        `before`, `after`: how many each node holds, and would hold."""
        most = self._limits.partitions_per_node
        over = [count for node, count in after.items() if count > most and count > before[node]]
        if over:
            raise TooLarge(
                f"there is no room for {sum(after.values()) - sum(before.values())} more replicas of partitions: "
                f"{_fullness(before)}, and a node holds {most} at most (limits.partitions_per_node): add nodes, delete "
                "topics, or raise it in the configuration of every node",
                limit="partitions_per_node",
                maximum=most,
                size=max(over),
            )

    async def _until_led(self, topic: Topic) -> None:
        with trio.move_on_after(LEADERS_WAIT_S):
            await self._routes.until_led([partition.group for partition in topic.partitions])

    # -- nodes ----------------------------------------------------------------------------------------------------

    async def change_node(self, request: NodeChange, caller: Caller) -> None:
        """Drain a node, let it take part again, or let the cluster forget it. Returns when it is written down. Raises
        NotFound, Conflict, InvalidRequest."""
        self._check_ready()
        if request.action == REMOVE:
            await self._remove(request.node)
        else:
            await self._drain(request.node, undo=request.action == UNDRAIN)

    async def _drain(self, node: str, *, undo: bool) -> None:
        """Let a node hold nothing, or (`undo`) again: the moves come after. InvalidRequest when those that remain would
        be too few."""

        async def change() -> None:
            self._node(node)
            if not undo:
                self._check_without(node)
            await self._change(m.ChangeStanding(node, IN if undo else DRAINING))
            log.info("a node takes part again" if undo else "a node is being drained", drained=node)

        await self._whole(change)

    async def _remove(self, node: str) -> None:
        """Let the cluster forget a node that holds nothing, or that has failed, once nothing depends on it."""

        async def change() -> None:
            record = self._node(node)
            if record.standing != REMOVING:
                self._check_removable(record)
                await self._change(m.ChangeStanding(node, REMOVING))
                log.info("a node is being removed", removed=node)

        await self._until_led_without(self._node(node))
        await self._whole(change)

    async def transfer(self, request: Transfer, caller: Caller) -> None:
        """Let a node that holds a partition lead it. Returns when it does. Raises UnknownTopic, UnknownPartition,
        InvalidRequest when it does not hold it; TimedOut when it does not come to lead it."""
        topic, partition, node = request.topic, request.partition, request.node
        self._check_ready()

        async def change() -> int:
            placed = self._placed(topic, partition, node)
            order = [node, *[other for other in placed.nodes if other != node]]
            if order != list(placed.nodes):
                await self._change(m.Assign(placed.group, placed.epoch, order))
            return placed.group

        group = await self._whole(change)
        with trio.move_on_after(LEADERS_WAIT_S):
            await self._routes.until_led_by(group, node)
        if self._routes.leader(group) != node:
            raise TimedOut(
                f"{node} does not lead partition {partition} of {topic!r} yet: "
                "it will once it can be reached and has caught up"
            )

    async def rebuild(self, request: Rebuild, caller: Caller) -> None:
        """Let a node drop its replica of a partition, and get it anew from the others. Returns when the others go on
        without it and it is written down that it comes anew. Raises UnknownTopic, UnknownPartition; InvalidRequest when
        the node does not hold it, or nobody else; Conflict when the others are not all there; TimedOut when it is not
        dropped in time: then it stays as it is; and when metadata cannot be changed a second time, as when this node
        ceases to lead in between: whoever leads then sees to it that there are as many again."""
        topic, partition, node = request.topic, request.partition, request.node
        self._check_ready()

        async def change() -> None:
            placed = self._placed(topic, partition, node)
            self._check_others(topic, partition, placed, node)
            self._rebuilding.add(placed.group)
            try:
                others = [other for other in placed.nodes if other != node]
                await self._change(m.Assign(placed.group, placed.epoch, others))
                left = await self._until_dropped(placed.group)
                if left is None:
                    raise TimedOut(
                        f"partition {partition} of {topic!r} has not let {node} go within {DROP_WAIT_S:g} s: it keeps "
                        "its replica; see that all nodes are there, and ask again"
                    )
                try:
                    await self._change(m.Assign(placed.group, left.epoch, placed.nodes))
                except (NotLeader, Overloaded, Unavailable, Conflict) as error:
                    # To be asked again means that nothing was done.
                    raise TimedOut(
                        f"{node} was to drop its replica of partition {partition} of {topic!r}, and to get it anew; "
                        "whoever leads the metadata gives the partition as many replicas as before, this one or a new "
                        f"one: if they differ still, ask again ({error.message})"
                    ) from None
            finally:
                self._rebuilding.discard(placed.group)
            log.info("a replica is made anew", topic=topic, partition=partition, on=node)

        await self._whole(change)

    def is_rebuilding(self, group: int) -> bool:
        """Whether a replica of a group is being dropped to be made anew: nobody else is to assign it meanwhile."""
        return group in self._rebuilding

    async def _until_dropped(self, group: int) -> Partition | None:
        """The partition once its group has nobody any more whom its assignment does not name; None: not in time."""
        with trio.move_on_after(DROP_WAIT_S):
            while (found := self._view.partition(group)) is not None and found.former:
                await self._metadata.changed()
            return found
        return None

    def _check_others(self, topic: str, partition: int, placed: Partition, node: str) -> None:
        """Whether the other replicas of a partition can go on without a node's, and make it anew."""
        if len(placed.nodes) == 1:
            raise InvalidRequest(f"{node} holds the only replica of partition {partition} of {topic!r}", topic=topic)
        if placed.moving or placed.former:
            raise Conflict(f"partition {partition} of {topic!r} is being moved: ask again when it is done", topic=topic)
        missing = sorted(set(placed.nodes) - {node} - set(self._up()))
        if missing or self._routes.leader(placed.group) is None:
            why = f"{', '.join(missing)} cannot be reached" if missing else "it has no leader"
            raise Conflict(
                f"partition {partition} of {topic!r} must not lose a replica now: {why}; nothing was dropped",
                topic=topic,
            )

    def _placed(self, topic: str, partition: int, node: str) -> Partition:
        """A partition that a node is to hold."""
        record = self._catalog.topic(topic).record
        if not 0 <= partition < len(record.partitions):
            raise UnknownPartition(f"topic {topic!r} has no partition {partition}", topic=topic)
        placed = record.partitions[partition]
        if node not in placed.nodes:
            holders = ", ".join(placed.nodes)
            raise InvalidRequest(f"{node} does not hold partition {partition} of {topic!r}; it is on {holders}")
        return placed

    def _node(self, node: str) -> NodeRecord:
        record = self._view.nodes.get(node)
        if record is None:
            known = ", ".join(sorted(self._view.nodes))
            raise NotFound(f"no node {node!r:.80} is registered; there are: {known}", node=node)
        return record

    def _check_without(self, node: str) -> None:
        """Whether the others are enough to hold everything."""
        others = sum(record.standing == IN for record in self._view.nodes.values() if record.node_id != node)
        for topic in self._view.topics.values():
            if topic.replicas > others:
                raise InvalidRequest(
                    f"topic {topic.name!r} has {topic.replicas} replicas, and without {node} {others} nodes would be "
                    "left: add a node first, or lower its replicas",
                    topic=topic.name,
                )
        if not others:
            raise InvalidRequest(f"{node} is the only node: there is nowhere to go")

    async def _until_led_without(self, node: NodeRecord) -> None:
        """Where a failed node held a replica an election may be under way yet."""
        if node.failed_since_ms is not None:
            placed = [placed for topic in self._view.topics.values() for placed in topic.partitions]
            with trio.move_on_after(LEADERS_WAIT_S):
                await self._routes.until_led([one.group for one in placed if node.node_id in one.nodes])

    def _check_removable(self, node: NodeRecord) -> None:
        view = self._view
        held = holds(view.topics.values(), node.node_id)
        if node.failed_since_ms is None and held:
            raise Conflict(
                f"{node.node_id} is there and holds {held} replicas: drain it first (or end it: a node is taken for "
                "failed some seconds after it is gone)",
                node=node.node_id,
            )
        if all(other.standing != IN for other in view.nodes.values() if other.node_id != node.node_id):
            raise Conflict(f"{node.node_id} is the only node that is to stay", node=node.node_id)
        for topic in view.topics.values():
            for at, placed in enumerate(topic.partitions):
                # Whoever leads it has a majority, and a failed node is no part of it.
                if node.node_id in placed.nodes and self._routes.leader(placed.group) is None:
                    raise Conflict(
                        f"partition {at} of topic {topic.name!r} has no leader without {node.node_id}: give that back, "
                        "or delete the topic",
                        node=node.node_id,
                        topic=topic.name,
                    )

    # -- anything else --------------------------------------------------------------------------------------------

    async def change(self, command: Callable[[MetadataView], m.Command]) -> Any:
        """Change metadata as `command` says of what it is by then; what the command gives. Raises what `command`
        raises, and what refuses the command."""
        self._check_ready()

        async def change() -> Any:
            return await self._change(command(self._view))

        return await self._whole(change)

    # -- how ------------------------------------------------------------------------------------------------------

    async def _change(self, command: m.Command) -> Any:
        """Change metadata; returns once this node has done what it says then."""
        result = await self._metadata.call(command)
        index = self._view.applied_index
        # The others learn with the next message what is committed: now, not with the next heartbeat.
        self._metadata.hurry()
        with trio.move_on_after(LEADERS_WAIT_S):
            await self._progress.until(index)
        with trio.move_on_after(OTHERS_WAIT_S):
            await self._progress.until_others(index)
        return result

    async def _whole(self, change: Callable[[], Awaitable[T]]) -> T:
        answer: list[T | Exception] = []
        finished = trio.Event()

        async def run() -> None:
            try:
                await self._take_turn()
                try:
                    answer.append(await change())
                finally:
                    self._one.release()
            except Exception as error:  # a fault, too, is for who asked, and not for the node
                answer.append(error)
            finished.set()

        self._nursery.start_soon(run)
        await finished.wait()
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    async def _take_turn(self) -> None:
        """Hold `_one`. Raises as `_check_ready` as soon as it does: the change before may wait until it is known what
        became of it, by when somebody else leads."""
        lost: list[SandqError] = []
        is_held = False

        async def watch() -> None:
            try:
                while True:
                    self._check_ready()
                    await self._metadata.changed()
            except SandqError as error:
                lost.append(error)
                waiting.cancel_scope.cancel()

        async with trio.open_nursery() as waiting:
            waiting.start_soon(watch)
            await self._one.acquire()
            is_held = True
            waiting.cancel_scope.cancel()
        if lost:
            if is_held:
                self._one.release()
            raise lost[0]


def _fullness(held: Mapping[str, int]) -> str:
    """How many partitions nodes hold, as a message says it: of the fullest."""
    fullest = sorted(held, key=lambda node: (-held[node], node))
    named = ", ".join([f"{node} holds {held[node]}" for node in fullest[:NODES_NAMED]])
    more = len(held) - NODES_NAMED
    return f"{named}, and {more} more nodes hold fewer" if more > 0 else named


def _sends_to(settings: Mapping[str, Any], number: int) -> bool:
    """Whether dead letters of a topic with these settings go to the topic of this number."""
    found = DeadLetterTopic.of(settings)
    return found is not None and found.number == number
