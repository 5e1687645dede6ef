"""Create topics from a backup.

A topic is *shut*, and accepts no messages, until all of its partitions are restored. Then it is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandq.broker.backups.whole_restores import WholeRestores
from sandq.broker.controller.dead_letter_topics import find_dead_letter_topic
from sandq.broker.controller.metadata_changes import MetadataChanges
from sandq.broker.controller.topic_administration import TopicAdministration
from sandq.metadata import commands as m
from sandq.metadata.records import Topic
from sandq.model.caller import Caller
from sandq.model.errors import Conflict, InvalidRequest, InvalidSetting, TopicExists, Unavailable, UnknownTopic
from sandq.model.group_limits import GROUP_LIMITS, limits_of
from sandq.model.logger import get_logger
from sandq.model.names import LIMITS_TOPIC, RESTORING, check_new_topic
from sandq.model.outbox import DEAD_LETTER_TOPIC
from sandq.model.settings import CLASSES
from sandq.model.stored_settings import checked_record
from sandq.protocol.requests_backup import RestoreOpen, RestoreTopic

log = get_logger("sandq.backup")


class TopicRestores:
    """Creates shut topics for a restore, and opens each topic when all its partitions are complete.

    All methods raise the errors of `MetadataChanges`.
    """

    def __init__(self, changes: MetadataChanges, topics: TopicAdministration, restores: WholeRestores) -> None:
        self._changes = changes
        self._topics = topics
        self._restores = restores

    async def restore_topic(self, request: RestoreTopic, caller: Caller) -> Topic:
        """Create a shut topic with all of its partitions. If the same restore has created the topic, add missing
        partitions.

        Raise TopicExists, InvalidRequest, InvalidSetting; NotFound if a group uses a named limit that does not exist;
        Conflict if the cluster's feature level is too low for such a topic."""
        name, kind = check_new_topic(request.name), request.kind
        if kind not in CLASSES:
            raise InvalidRequest(f"kind {kind!r:.40} is unknown; this version has: {', '.join(CLASSES)}")
        if request.initial_partitions > request.partitions:
            raise InvalidRequest("initial_partitions must not exceed partitions")
        self._topics.placement.check_partitions(request.initial_partitions)
        self._topics.placement.check_partitions(request.partitions)
        self._changes.check_ready()
        self._topics.placement.replicas(request.replicas)
        record = {**record_of(request.settings, kind), RESTORING: request.restore_id}
        owner = request.owner

        async def restore() -> Topic:
            """Create the topic if it does not exist, add missing partitions, and wait until all partitions have
            leaders."""
            topic = self._changes.view.topics.get(name)
            if topic is not None and topic.settings.get(RESTORING) != request.restore_id:
                raise TopicExists(f"there is a topic {name!r} already", topic=name)
            if topic is None:
                self._topics.check_used_limits(record)
                # First create only the initial partitions: their number decides to which partition a key belongs.
                self._topics.placement.check_total("topics", len(self._changes.view.topics) + 1)
                self._topics.placement.check_capacity(request.partitions)
                placement = await self._topics.placement.place(request.initial_partitions, request.replicas)
                made = m.CreateTopic(name, kind, request.replicas, placement, record, owner)
                topic = await self._changes.commit(made)
            more = request.partitions - len(topic.partitions)
            if more > 0:
                self._topics.placement.check_capacity(more)
                added = await self._topics.placement.place(more, topic.replicas, topic)
                there = len(topic.partitions)
                topic = await self._changes.commit(m.UpdateTopic(name, topic.settings, topic.replicas, there, added))
            await self._topics.until_led(topic)
            log.info("topic is being restored", topic=name, partitions=len(topic.partitions), by=request.restore_id)
            return topic

        return await self._changes.run(restore)

    async def open_topic(self, request: RestoreOpen, caller: Caller) -> Topic:
        """Open a restored topic. Do nothing if the topic is open already.

        Raise UnknownTopic; InvalidSetting; Conflict if another restore creates the topic, or if a partition is
        incomplete. Raise Unavailable if it is unknown whether all partitions are complete."""
        name = request.topic
        self._changes.check_ready()
        shut = self._shut(request)
        if shut is not None:
            await self._restores.check(shut, request.restore_id)

        async def reopen() -> Topic:
            """Commit the topic without the mark that keeps it shut, and configure its partitions."""
            topic = self._shut(request)
            if topic is None:
                return self._changes.view.topics[name]
            if shut is None or (topic.number, len(topic.partitions)) != (shut.number, len(shut.partitions)):
                raise Unavailable(f"topic {name!r} was created again meanwhile; ask again")
            record = {key: value for key, value in topic.settings.items() if key != RESTORING}
            if request.dead_letter_topic is not None:
                record[DEAD_LETTER_TOPIC] = request.dead_letter_topic
                find_dead_letter_topic(self._changes.view, name, record)
            command = m.UpdateTopic(name, record, topic.replicas, len(topic.partitions))
            opened: Topic = await self._changes.commit(command)
            await self._topics.configure(name, record)
            log.info("topic is restored", topic=name, by=request.restore_id)
            return opened

        return await self._changes.run(reopen)

    def _shut(self, request: RestoreOpen) -> Topic | None:
        """Return the topic if it is still shut; None if it is open. Raise UnknownTopic, Conflict."""
        topic = self._changes.view.topics.get(request.topic)
        if topic is None:
            raise UnknownTopic(f"there is no topic {request.topic!r}", topic=request.topic)
        wanted = topic.settings.get(RESTORING)
        if wanted not in (None, request.restore_id):
            raise Conflict(
                f"topic {topic.name!r} is being restored by {wanted}, not by {request.restore_id}", topic=topic.name
            )
        return None if wanted is None else topic


def record_of(settings: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Convert the settings of a topic in a backup to the record that this version writes.

    Raise InvalidSetting if a topic cannot be created with these settings."""
    try:
        record = checked_record(settings, kind)
        defined = [name for name, limit in limits_of(record).items() if limit.is_named]
        if defined:
            mistake = f"{GROUP_LIMITS}.{defined[0]}: only the topic {LIMITS_TOPIC!r} defines named limits"
            raise InvalidSetting(mistake, mistakes=[mistake])
        return record
    except InvalidSetting as error:
        why = f"these settings are invalid for a {kind} topic: {error.message}"
        raise InvalidSetting(why, mistakes=error.details.get("mistakes", [error.message])) from None
