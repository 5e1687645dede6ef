"""Check the dead letter topic of a topic: dead letters must not return to the topic that they came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandq.broker.replication.replica import MetadataView
from sandq.model.errors import (
    Conflict,
    InvalidSetting,
)
from sandq.model.names import COMPACTED, INTERNAL
from sandq.model.outbox import DEAD_LETTER, DEAD_LETTER_TOPIC, DeadLetterTopic

TOPICS_NAMED: Final = 8
"""Maximum number of topics named in an error message."""


def find_dead_letter_topic(view: MetadataView, name: str, record: dict[str, Any]) -> None:
    """If a topic has a dead letter topic, add the number and kind of the dead letter topic to the settings.

    `name`: name of the topic. `record`: its settings, changed in place (key `DEAD_LETTER`). Raise InvalidSetting if the
    dead letters cannot or must not go there."""
    wanted = record.get(DEAD_LETTER_TOPIC)
    if wanted is None:
        return
    topic = view.topics.get(wanted)
    mistake = None
    if wanted == name:
        mistake = "the dead letters of a topic must go to a different topic"
    elif wanted in INTERNAL:
        mistake = f"topic {wanted!r} belongs to sandq: no messages can be sent to it"
    elif topic is None:
        mistake = f"there is no topic {wanted!r}; create it first"
    elif topic.kind == COMPACTED:
        mistake = (
            f"topic {wanted!r} is compacted, and keeps only the last message of each key: use a topic of another kind"
        )
    elif name in (chain := _dead_letter_topics(view, wanted)):
        mistake = f"dead letters would return: those of {' go to '.join([wanted, *chain])}"
    if mistake is not None:
        raise InvalidSetting(f"{DEAD_LETTER_TOPIC}: {mistake}", mistakes=[f"{DEAD_LETTER_TOPIC}: {mistake}"])
    assert topic is not None
    record[DEAD_LETTER] = [topic.number, topic.initial_partitions, topic.kind, name]


def _dead_letter_topics(view: MetadataView, name: str) -> list[str]:
    """Return the dead letter topic of a topic, that topic's dead letter topic, and so on, up to the end or a cycle."""
    found: list[str] = []
    while (topic := view.topics.get(name)) is not None and name not in found[:-1]:
        name = topic.settings.get(DEAD_LETTER_TOPIC, "")
        if not name:
            break
        found.append(name)
    return found


def check_no_dead_letters_come(view: MetadataView, name: str) -> None:
    """Raise Conflict if a topic is the dead letter topic of other topics."""
    topic = view.topics.get(name)
    if topic is None:
        return  # the command `DeleteTopic` will report that the topic does not exist
    senders = sorted([other.name for other in view.topics.values() if _sends_to(other.settings, topic.number)])
    if senders:
        more = f" and {len(senders) - TOPICS_NAMED} more" if len(senders) > TOPICS_NAMED else ""
        raise Conflict(
            f"topic {name!r} is the dead letter topic of {', '.join(senders[:TOPICS_NAMED])}{more}: give these "
            "a different one, or none, first",
            topic=name,
        )


def _sends_to(settings: Mapping[str, Any], number: int) -> bool:
    """Return whether dead letters of a topic with these settings go to the topic with this number."""
    found = DeadLetterTopic.of(settings)
    return found is not None and found.number == number
