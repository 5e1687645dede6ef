"""Create, change and delete topics, and set limits and pushes of their groups."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.controller.dead_letter_topics import check_no_dead_letters_come, find_dead_letter_topic
from sandq.broker.controller.metadata_changes import LEADERS_WAIT_S, MetadataChanges
from sandq.broker.controller.topic_attempts import TopicAttempts
from sandq.broker.controller.topic_placement import TopicPlacement
from sandq.broker.peers.routes import Routes
from sandq.broker.reads.fan_out import call_all
from sandq.metadata import commands as m
from sandq.metadata.records import Topic
from sandq.model.auto_create import AutoCreate
from sandq.model.caller import ANONYMOUS, NODE, Caller
from sandq.model.errors import (
    Conflict,
    InvalidRequest,
    InvalidSetting,
    NotFound,
    TopicExists,
    UnknownTopic,
)
from sandq.model.group_limits import GROUP_LIMITS, limits_of, names_used, parse_limit, with_limit
from sandq.model.logger import get_logger
from sandq.model.message_targets import PUSH_TARGETS
from sandq.model.names import (
    AUTO_CREATED,
    COMPACTED,
    FAIR,
    LIMITS_TOPIC,
    RESTORING,
    TIMER,
    check_name,
    check_new_topic,
    check_not_internal,
)
from sandq.model.outbox import DEAD_LETTER, DEAD_LETTER_TOPIC
from sandq.model.push import PAUSE_LIMIT, PAUSE_TENANT, changed_push, shown
from sandq.model.push_targets import PushRules, Target, TargetRefused
from sandq.model.settings import CLASSES, parse_settings, update_settings
from sandq.partition import commands as c
from sandq.protocol.requests_admin import (
    GroupLimit,
    GroupPush,
    TopicCreate,
    TopicDelete,
    TopicEnsure,
    TopicUpdate,
)

log = get_logger("sandq.broker")


class TopicAdministration:
    """Makes changes of topics and of the settings of their groups. All methods raise the errors of
    `MetadataChanges`."""

    def __init__(
        self,
        *,
        node_id: str,
        changes: MetadataChanges,
        placement: TopicPlacement,
        catalog: Catalog,
        routes: Routes,
        push_rules: PushRules,
        auto_create: AutoCreate,
        auto_created_most: int,
    ) -> None:
        """`auto_create`: rules for the topics that are created on first use. `auto_created_most`: maximum number of
        such topics."""
        self.placement = placement
        self.auto_created = 0
        """Number of topics that were created here on first use."""
        self._node_id = node_id
        self._changes = changes
        self._catalog = catalog
        self._routes = routes
        self._push_rules = push_rules
        self._auto_create = auto_create
        self._attempts = TopicAttempts(auto_created_most)

    async def create_topic(self, request: TopicCreate, caller: Caller) -> Topic:
        """Create a topic. Return when the topic accepts messages.

        Raise InvalidRequest, TopicExists; Conflict if the cluster's feature level is too low for such a topic."""
        name, kind, partitions = request.name, request.kind, request.partitions
        check_new_topic(name)
        if kind not in CLASSES:
            raise InvalidRequest(f"kind {kind!r} is unknown; this version has: {', '.join(CLASSES)}")
        record = self._checked(request)
        replicas = self.placement.replicas(request.replicas)

        async def create() -> Topic:
            if name in self._changes.view.topics:
                raise TopicExists(f"there is a topic {name!r} already", topic=name)
            topic = await self._create(name, kind, partitions, replicas, record, caller)
            log.info("topic created", topic=name, partitions=partitions, replicas=replicas)
            return topic

        return await self._changes.run(create)

    def _checked(self, request: TopicCreate) -> dict[str, Any]:
        """Check a request for a new topic, and that this node can make changes now. Return the topic's settings as a
        record."""
        self.placement.check_partitions(request.partitions)
        self._changes.check_ready()
        return parse_settings(request.settings, request.kind).record()

    async def _create(
        self, name: str, kind: str, partitions: int, replicas: int, record: dict[str, Any], caller: Caller
    ) -> Topic:
        """Choose the nodes of a new topic, commit the topic, and wait until its partitions have leaders. Call this
        within `MetadataChanges.run`."""
        find_dead_letter_topic(self._changes.view, name, record)
        self.placement.check_total("topics", len(self._changes.view.topics) + 1)
        self.placement.check_capacity(partitions)
        placement = await self.placement.place(partitions, replicas)
        command = m.CreateTopic(name, kind, replicas, placement, record, self._owner(caller))
        topic: Topic = await self._changes.commit(command)
        await self.until_led(topic)
        return topic

    def _owner(self, caller: Caller) -> str | None:
        """Return the owner of topics that a caller creates; None if the caller cannot have a quota."""
        if caller.principal in (ANONYMOUS, NODE.principal):
            return None
        return caller.principal

    async def ensure_topic(self, request: TopicEnsure, caller: Caller) -> Topic:
        """Return the topic of this name. If the topic does not exist, create it as this node's configuration says.

        Concurrent requests create the topic only once. Raise UnknownTopic if the configuration does not create topics
        of this name; TooLarge if the maximum number of such topics exists. Raise the errors of `create_topic`."""
        name, auto_create = check_name("topic", request.name), self._auto_create
        self._changes.check_ready()
        if (there := self._changes.view.topics.get(name)) is not None:
            return there
        if not auto_create.matches(name):
            raise UnknownTopic(
                f"there is no topic {name!r}, and it matches no pattern in auto_create_topics of {self._node_id}, the "
                f"current metadata leader ({auto_create}): create it, or give all nodes the same patterns",
                topic=name,
            )
        check_new_topic(name)
        # Check the limit here already. So a request that exceeds the limit is refused without waiting for other
        # changes.
        while (there := self._changes.view.topics.get(name)) is None:
            self.placement.check_total("auto_created_topics", self._attempts.made(self._changes.view) + 1)
            if not await self._attempts.until_ended(name):
                with self._attempts.attempt(name, self._changes.view):
                    return await self._ensure(name, caller)
            self._changes.check_ready()
        return there

    async def _ensure(self, name: str, caller: Caller) -> Topic:
        """Create a topic as this node's configuration says, or return the topic that exists by now."""
        auto_create = self._auto_create

        async def ensure() -> Topic:
            if (there := self._changes.view.topics.get(name)) is not None:
                return there
            self.placement.check_total("auto_created_topics", self._attempts.made(self._changes.view) + 1)
            wanted = TopicCreate(
                name, auto_create.kind, auto_create.partitions, auto_create.replicas, auto_create.settings
            )
            record = {**self._checked(wanted), AUTO_CREATED: True}
            replicas = self.placement.replicas(wanted.replicas)
            topic = await self._create(name, wanted.kind, wanted.partitions, replicas, record, caller)
            self.auto_created += 1
            log.info(
                "topic created on first use",
                topic=name,
                partitions=wanted.partitions,
                replicas=replicas,
                principal=caller.principal,
                peer=caller.address,
            )
            return topic

        return await self._changes.run(ensure)

    async def update_topic(self, request: TopicUpdate, caller: Caller) -> Topic:
        """Change the settings and the number of replicas of a topic, and add partitions.

        Raise UnknownTopic, InvalidSetting, InvalidRequest."""
        name, partitions, replicas = request.name, request.partitions, request.replicas
        if partitions is not None or request.settings:
            check_not_internal(name, "only its number of replicas can be changed")
        self._changes.check_ready()
        if partitions is not None:
            self.placement.check_partitions(partitions)
        if replicas is not None:
            self.placement.replicas(replicas)

        async def update() -> Topic:
            """Check the change against the current record, choose nodes for new replicas, and commit the change."""
            old = self._catalog.topic(name).record
            check_not_restoring(old)
            record = update_settings(old.settings, request.settings, old.kind).record()
            if GROUP_LIMITS in old.settings:
                record[GROUP_LIMITS] = old.settings[GROUP_LIMITS]
            if DEAD_LETTER_TOPIC in request.settings:
                find_dead_letter_topic(self._changes.view, name, record)
            elif DEAD_LETTER in old.settings:
                record[DEAD_LETTER] = old.settings[DEAD_LETTER]
            there, copies = len(old.partitions), replicas or old.replicas
            more = (partitions or there) - there
            if more and old.kind == COMPACTED:
                raise InvalidRequest(
                    f"topic {name!r} has {there} partitions for ever: it is compacted, and its keys do not move to "
                    "other partitions; create another topic and copy the keys",
                    topic=name,
                )
            if more < 0:
                raise InvalidRequest(f"topic {name!r} has {there} partitions; they cannot become fewer", topic=name)
            self.placement.check_capacity(more)
            added = await self.placement.place(more, copies, old) if more or copies > old.replicas else []
            topic: Topic = await self._changes.commit(m.UpdateTopic(name, record, copies, there, added))
            await self.configure(name, record)
            await self.until_led(topic)
            log.info("topic updated", topic=name, partitions=len(topic.partitions), replicas=copies)
            return topic

        return await self._changes.run(update)

    async def limit_group(self, request: GroupLimit, caller: Caller) -> None:
        """Set or remove the limits of a group over all partitions. This also works before the group exists. In the
        topic `sandq.limits`, a group is a named limit.

        Raise UnknownTopic, InvalidSetting, InvalidRequest; NotFound if there is no such named limit; Conflict
        instead of removing a named limit that a group uses."""
        name, group = request.topic, check_name("group", request.group)
        limit = parse_limit(request.limits)
        self._changes.check_ready()
        if name == LIMITS_TOPIC:
            await self._changes.run(partial(self._set_named_limit, group, limit))
            return

        async def change() -> None:
            """Commit the topic's settings with the new limits, if they differ."""
            old = self._catalog.topic(name).record
            if limit is not None and limit["limit"] is not None:
                self._check_named_limit(limit["limit"])
            if old.kind == COMPACTED:
                raise InvalidRequest(f"topic {name!r} is compacted: its groups have no limits", topic=name)
            partitions = len(old.partitions)
            record = with_limit(old.settings, group, partitions, limit)
            if record == old.settings:
                return
            await self._changes.commit(m.UpdateTopic(name, record, old.replicas, partitions))
            await self.configure(name, record)
            log.info("group limited", topic=name, group=group, limits=limit)

        await self._changes.run(change)

    def check_used_limits(self, settings: Mapping[str, Any]) -> None:
        """Raise NotFound if a group uses a named limit that does not exist. `settings`: the record of a topic."""
        for name in sorted(names_used(settings)):
            self._check_named_limit(name)

    def _check_named_limit(self, name: str) -> None:
        """Raise NotFound if there is no named limit of this name."""
        topic = self._changes.view.topics.get(LIMITS_TOPIC)
        if topic is None or name not in limits_of(topic.settings):
            raise NotFound(f"there is no limit {name!r}; set it first (sandctl limit set {name})", limit=name)

    async def _set_named_limit(self, name: str, limit: dict[str, Any] | None) -> None:
        """Commit the definition of a named limit. None deletes the limit. Create the topic of named limits with the
        first one. Call this within `MetadataChanges.run`.

        Raise NotFound, InvalidRequest; Conflict instead of deleting a limit that a group uses."""
        if limit is None:
            self._check_named_limit(name)
            self._check_not_used(name)
        elif limit["limit"] is not None:
            raise InvalidRequest(f"limit {name!r} cannot use another limit: give it a rate, or a number in flight")
        topic = self._changes.view.topics.get(LIMITS_TOPIC)
        if topic is None:
            with_limit({}, name, 0, limit)  # raises the errors that the change below would raise
            record, replicas = parse_settings({}, TIMER).record(), self.placement.replicas(None)
            topic = await self._create(LIMITS_TOPIC, TIMER, 1, replicas, record, NODE)
        record = with_limit(topic.settings, name, 0, limit)
        if record == topic.settings:
            return
        await self._changes.commit(m.UpdateTopic(LIMITS_TOPIC, record, topic.replicas, len(topic.partitions)))
        await self.configure(LIMITS_TOPIC, record)
        log.info("named limit set" if limit else "named limit deleted", limit=name, definition=limit)

    def _check_not_used(self, name: str) -> None:
        """Raise Conflict if a group uses the named limit."""
        for topic in self._changes.view.topics.values():
            for group, used in limits_of(topic.settings).items():
                if used.name == name:
                    raise Conflict(
                        f"limit {name!r} is used by group {group!r} of topic {topic.name!r}: remove it there first",
                        limit=name,
                        topic=topic.name,
                        group=group,
                    )

    async def push_group(self, request: GroupPush, caller: Caller) -> dict[str, Any] | None:
        """Set, change or end the push of a group's messages to a URL, or to URLs of their own. Return the new settings
        without secrets.

        If `request.push` is None, the push ends. This method also works before the group exists. Raise UnknownTopic,
        InvalidSetting, InvalidRequest."""
        name, group = request.topic, check_name("group", request.group)
        self._changes.check_ready()

        async def change() -> dict[str, Any] | None:
            """If the push of the group changes, commit the new push, or the end of the push. Return the new settings
            without secrets."""
            topic = self._catalog.topic(name).record
            kind = topic.kind
            old = self._changes.view.pushes.get((name, group))
            if request.push is None:
                if old is not None:
                    await self._changes.commit(m.SetPush(name, group, None))
                    log.info("group is not pushed any more", topic=name, group=group)
                return None
            check_not_internal(name, "it has no messages")
            push = changed_push(old, request.push)
            if push.get("on_429") == PAUSE_TENANT and kind != FAIR:
                problem = f"on_429: topic {name!r} is a {kind} topic, and only a fair topic has tenants to pause"
                raise InvalidSetting(problem, mistakes=[problem])
            used = limits_of(topic.settings).get(group)
            if push.get("on_429") == PAUSE_LIMIT and (used is None or used.name is None):
                todo = f"set it first (sandctl group limit {name} {group} --limit NAME)"
                problem = f"on_429: group {group!r} uses no named limit to pause: {todo}"
                raise InvalidSetting(problem, mistakes=[problem])
            if push["url"] is None and not topic.settings.get(PUSH_TARGETS):
                todo = "compacted topics cannot" if kind == COMPACTED else f"set its {PUSH_TARGETS} first"
                problem = f"targets: messages of topic {name!r} have no URLs: {todo}"
                raise InvalidSetting(problem, mistakes=[problem])
            if request.push.get("url") is not None:
                try:
                    self._push_rules.check(Target.parse(push["url"]))
                except TargetRefused as error:
                    raise InvalidSetting(error.message, mistakes=[error.message]) from None
            if push != old:
                await self._changes.commit(m.SetPush(name, group, push))
                log.info("group is pushed", topic=name, group=group, url=shown(push)["url"])
            return shown(push)

        return await self._changes.run(change)

    async def configure(self, name: str, record: dict[str, Any]) -> None:
        """Store the settings `record` in those partitions of the topic `name` that this node leads."""
        hosts = [leader.raft_group for leader in self._catalog.topic(name).led().values()]
        await call_all([(host, c.Configure(record)) for host in hosts if host.status.settings != record])

    async def delete_topic(self, request: TopicDelete, caller: Caller) -> None:
        """Delete a topic. Return when the topic is deleted; its disk space is reclaimed later.

        Raise UnknownTopic; Conflict if the topic is the dead letter topic of another topic."""
        self._changes.check_ready()

        async def delete() -> None:
            topic = self._changes.view.topics.get(request.name)
            if topic is not None:
                check_not_internal(request.name, "it cannot be deleted; delete the limits in it")
            check_no_dead_letters_come(self._changes.view, request.name)
            await self._changes.commit(m.DeleteTopic(request.name))
            log.info("topic deleted", topic=request.name)

        await self._changes.run(delete)

    async def until_led(self, topic: Topic) -> None:
        """Wait until all partitions of a topic have leaders, up to `LEADERS_WAIT_S`."""
        with trio.move_on_after(LEADERS_WAIT_S):
            await self._routes.until_led([partition.group for partition in topic.partitions])


def check_not_restoring(topic: Topic) -> None:
    """Raise Conflict while a topic is being restored: a change would open it before it is complete."""
    if RESTORING in topic.settings:
        raise Conflict(
            f"topic {topic.name!r} is being restored from a backup: it can be deleted, and changed once that is done",
            topic=topic.name,
        )
