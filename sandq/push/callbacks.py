"""Build the callback of a pushed message: the message that reports the result of its request."""

from __future__ import annotations

import codecs
import json
from base64 import b64encode
from typing import Any

from sandq.client import Message
from sandq.model.headers import headers_or_none
from sandq.model.message_targets import PUSH_HEADER
from sandq.model.push_targets import shown_url
from sandq.model.times import format_instant
from sandq.push.http_client import ANSWER_BYTES
from sandq.push.outcomes import Outcome


def callback_value(message: Message, group: str, outcome: Outcome, now_ms: int) -> dict[str, Any]:
    """Return the value of a callback. The message has a valid target.

    A body that is not UTF-8 is given as `response_base64`; a character that was cut off at its end does not count."""
    response: dict[str, Any] = {"response": None}
    if outcome.status is not None:
        try:
            response = {"response": _text_of(outcome.body)}
        except UnicodeDecodeError:
            response["response_base64"] = b64encode(outcome.body).decode()
    return {
        "topic": message.topic,
        "partition": message.partition,
        "id": message.id,
        "group": group,
        "url": _url_of(message),
        "status": outcome.status,
        "attempts": message.attempt,
        **response,
        "error": outcome.error,
        "delivered_at": format_instant(now_ms),
    }


def _url_of(message: Message) -> str:
    """Return the URL of a message, without the values in its query: the readers of the callback may be others."""
    headers = headers_or_none(message.headers_bytes or None) or {}
    return shown_url(json.loads(headers[PUSH_HEADER])["url"])


def _text_of(body: bytes) -> str:
    """Decode the beginning of a body. Raise UnicodeDecodeError."""
    return codecs.getincrementaldecoder("utf-8")().decode(body, final=len(body) < ANSWER_BYTES)
