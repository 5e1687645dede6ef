"""Which topic the dead letters of a topic go to: they never come back to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandq.broker.replication.replica import MetadataView
from sandq.model.errors import (
    Conflict,
    InvalidSetting,
)
from sandq.model.names import COMPACTED
from sandq.model.outbox import DEAD_LETTER, DEAD_LETTER_TOPIC, DeadLetterTopic

TOPICS_NAMED: Final = 8
"""Topics that a message names."""


def find_dead_letter_topic(view: MetadataView, name: str, record: dict[str, Any]) -> None:
    """Put into the settings' record of a topic where its dead letters go, if it names a topic for them. Raises
    InvalidSetting."""
    wanted = record.get(DEAD_LETTER_TOPIC)
    if wanted is None:
        return
    topic = view.topics.get(wanted)
    mistake = None
    if wanted == name:
        mistake = "a topic's dead letters go to another one"
    elif topic is None:
        mistake = f"there is no topic {wanted!r}; create it first"
    elif topic.kind == COMPACTED:
        mistake = f"topic {wanted!r} is compacted, and keeps of each key only the last message: take another kind"
    elif name in (chain := _dead_letter_topics(view, wanted)):
        mistake = f"dead letters would come back: those of {' go to '.join([wanted, *chain])}"
    if mistake is not None:
        raise InvalidSetting(f"{DEAD_LETTER_TOPIC}: {mistake}", mistakes=[f"{DEAD_LETTER_TOPIC}: {mistake}"])
    assert topic is not None
    record[DEAD_LETTER] = [topic.number, topic.initial_partitions, topic.kind, name]


def _dead_letter_topics(view: MetadataView, name: str) -> list[str]:
    """Where dead letters of a topic go, where those of that topic go, and so on."""
    found: list[str] = []
    while (topic := view.topics.get(name)) is not None and name not in found[:-1]:
        name = topic.settings.get(DEAD_LETTER_TOPIC, "")
        if not name:
            break
        found.append(name)
    return found


def check_no_dead_letters_come(view: MetadataView, name: str) -> None:
    """Raises Conflict while a topic is the dead letter topic of others."""
    topic = view.topics.get(name)
    if topic is None:
        return  # that is told by who deletes it
    senders = sorted([other.name for other in view.topics.values() if _sends_to(other.settings, topic.number)])
    if senders:
        more = f" and {len(senders) - TOPICS_NAMED} more" if len(senders) > TOPICS_NAMED else ""
        raise Conflict(
            f"topic {name!r} is the dead letter topic of {', '.join(senders[:TOPICS_NAMED])}{more}: give these "
            "another one, or none, first",
            topic=name,
        )


def _sends_to(settings: Mapping[str, Any], number: int) -> bool:
    """Whether dead letters of a topic with these settings go to the topic of this number."""
    found = DeadLetterTopic.of(settings)
    return found is not None and found.number == number
