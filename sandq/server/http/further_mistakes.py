"""Find further mistakes in a body that was refused, so that all of them are reported in one response.

The normal checks are fast. If values have wrong types, they report these and check nothing else. If all types are
right, they stop at the first mistake. The checks here may be slow, because the request fails anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from sandq.client.json_format import message_errors
from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.names import TIMER, check_name
from sandq.model.settings import CLASSES, parse_settings

_OF_TOPICS = frozenset(("name", "kind", "settings"))
_OF_MESSAGES = frozenset(("unique_key", "on_conflict"))
"""Members by which the type of a route's body is recognized."""
_OF_REQUESTS = frozenset(("on_conflict", "max_wait", "window", "edge"))
"""Members of a message in a request that are not fields of the message itself."""


def further_mistakes(body: Any, members: Set[str]) -> Iterator[tuple[str, InvalidRequest]]:
    """Yield the mistakes in a JSON body, and where they are.

    `members`: names of the top-level members that the body may have. The names show the type of the body: an ack is no
    message, although it may contain messages. Settings of a topic are checked against its kind, if that is known. A
    list of messages is not checked: the first invalid one is reported by itself."""
    if not isinstance(body, Mapping):
        return
    if members >= _OF_TOPICS:
        yield from _of_topic(body)
    elif members >= _OF_MESSAGES and "messages" not in body:
        message = {name: value for name, value in body.items() if name not in _OF_REQUESTS}
        for name, error in message_errors(message):
            yield f"body.{name}", error


def _of_topic(body: Mapping[str, Any]) -> Iterator[tuple[str, InvalidRequest]]:
    """Yield the mistakes in the body of a topic: its name, and each of its settings."""
    try:
        check_name("topic", body.get("name", TIMER))
    except InvalidRequest as error:
        yield "body.name", error
    kind, settings = body.get("kind", TIMER), body.get("settings")
    if not isinstance(settings, Mapping) or not isinstance(kind, str) or kind not in CLASSES:
        return
    try:
        parse_settings(settings, kind)
    except InvalidSetting as error:
        mistakes = error.details["mistakes"]
        assert isinstance(mistakes, list)
        for mistake in mistakes:
            path, _, problem = str(mistake).partition(": ")
            yield f"body.settings.{path}", InvalidSetting(problem or path)
