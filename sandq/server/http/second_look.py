"""What else is wrong with a body that was refused: what is checked behind its types, told in the same answer.

Bodies whose types are wrong are not read further, and what reads them further stops at the first mistake where it is
fast. Here nothing has to be fast: the request fails anyhow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from sandq.client.json_format import mistakes_of_message
from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.names import TIMER, check_name
from sandq.model.settings import CLASSES, parse_settings

_OF_TOPICS = frozenset(("name", "kind", "settings"))
_OF_MESSAGES = frozenset(("unique_key", "on_conflict"))
"""Members by which it is known what a route takes."""


def also_wrong(body: Any, members: Set[str]) -> Iterator[tuple[str, InvalidRequest]]:
    """Mistakes in a body of JSON, and where they are; `members`: those that the bodies of its route may have, by
    themselves: an ack is no message, although it may have some. Of the settings of a topic those that its kind, as far
    as it is told, does not take; of many messages nothing: their first wrong one is told by itself."""
    if not isinstance(body, Mapping):
        return
    if members >= _OF_TOPICS:
        yield from _of_topic(body)
    elif members >= _OF_MESSAGES and "messages" not in body:
        for name, error in mistakes_of_message(body):
            yield f"body.{name}", error


def _of_topic(body: Mapping[str, Any]) -> Iterator[tuple[str, InvalidRequest]]:
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
            path, _, what = str(mistake).partition(": ")
            yield f"body.settings.{path}", InvalidSetting(what or path)
