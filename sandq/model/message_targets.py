"""The URL of a message: the reserved header `sandq-push`, whose value is a JSON object in text.

    {"url": "https://shop.example/hooks", "method": "PUT", "headers": {"authorization": "Bearer x"}, "timeout": "5s"}

Only `url` is required. `callback` and `failure_callback` name topics to which the sender reports the result. A topic
accepts the header if its setting `push_targets` is true. The broker checks the header when it accepts a message, and
the sender checks it again before it connects: a restored backup may contain anything. PERSISTED in the headers of
messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from sandq.model.access import Access, Right
from sandq.model.errors import InvalidRequest
from sandq.model.names import check_new_topic
from sandq.model.push_targets import PushRules, Target
from sandq.model.times import Duration, duration_ms, format_duration

PUSH_HEADER: Final = "sandq-push"
PUSH_TARGETS: Final = "push_targets"
"""Setting of a topic: whether its messages may have URLs."""
TEXT_CHARS: Final = 8192
"""Maximum number of characters of the header."""
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET")
HEADERS_MOST: Final = 16
"""Maximum number of headers that a request gets from the target of a message or from the push of a group."""
HEADERS_BYTES: Final = 4096
"""Maximum size of these headers together, in bytes."""
TIMEOUT_LEAST_MS: Final = 1000
TIMEOUT_MOST_MS: Final = 600_000
CALLBACKS: Final = ("callback", "failure_callback")
_FIELDS: Final = ("url", "method", "headers", "timeout", *CALLBACKS)
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?|")
_OURS: Final = ("webhook-", "sandq-", "proxy-")
"""Prefixes of headers that only the sender sets."""
_REFUSED: Final = frozenset(
    (
        *("host", "content-length", "accept-encoding", "expect"),
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that describe the connection or the framing of the request."""

OwnHeaders = tuple[tuple[str, str], ...]
"""Headers of a request in the order in which they were given, with names in lower case."""


class MessageTarget(NamedTuple):
    """The checked target of a message."""

    target: Target
    method: str = "POST"
    headers: OwnHeaders = ()
    timeout_ms: int | None = None
    """Time for the request, in ms; None: as the push of the group says."""
    callback: str | None = None
    """Topic that gets a message when the receiver has accepted this one."""
    failure_callback: str | None = None
    """Topic that gets a message when the sender makes this one dead."""


class TargetRules(NamedTuple):
    """The targets that a caller may give to messages of a topic."""

    urls: PushRules
    check_topic: Callable[[str], None]
    """Raises InvalidRequest, or Unavailable if it is not certain, unless callbacks may be sent to a topic."""
    access: Access | None = None
    """Rights of the caller; None: all."""

    def check(self, target: MessageTarget) -> None:
        """Raise InvalidRequest, Forbidden or Unavailable unless the target is allowed. This does not resolve its
        name."""
        self.urls.check(target.target)
        for topic in callbacks_of(target):
            if self.access is not None:
                self.access.check(Right.PRODUCE, topic)
            self.check_topic(topic)


def callbacks_of(target: MessageTarget) -> set[str]:
    """Return the topics to which callbacks of a message are sent."""
    return {topic for topic in (target.callback, target.failure_callback) if topic is not None}


@dataclass(frozen=True, slots=True)
class PushTarget:
    """The URL to which a group with `targets="message"` sends a message, for `produce(..., push=...)`.

    `method`: POST, PUT, PATCH, DELETE or GET. `headers`: up to 16 headers of the request; they are stored with the
    message, where every consumer can read them. `timeout`: time for the request and its response, 1 s to 10 minutes; by
    default that of the group. `callback`: topic that gets a message once the receiver has accepted this one.
    `failure_callback`: topic that gets a message if this one is dead after a response or a failed request. The producer
    needs the right `produce` on both.
    """

    url: str
    method: str = "POST"
    headers: Mapping[str, str] | None = None
    timeout: Duration | None = None
    callback: str | None = None
    failure_callback: str | None = None

    @classmethod
    def of(cls, found: object) -> Self:
        """Return the target that a JSON object describes. Raise InvalidRequest."""
        if not isinstance(found, Mapping):
            raise InvalidRequest("push: an object with a url is expected")
        if unknown := sorted(str(name)[:40] for name in found if name not in _FIELDS):
            raise InvalidRequest(f"push: {unknown[0]!r} is no part of a target; there are {', '.join(_FIELDS)}")
        if found.get("url") is None:
            raise InvalidRequest("push: url is missing")
        return cls(**{name: value for name, value in found.items() if value is not None})

    def text(self) -> str:
        """Return the value of the header `sandq-push`. Raise InvalidRequest."""
        found: dict[str, Any] = {"url": self.url}
        if self.method != "POST":
            found["method"] = self.method
        if self.headers:
            found["headers"] = dict(self.headers) if isinstance(self.headers, Mapping) else self.headers
        if self.timeout is not None:
            found["timeout"] = format_duration(duration_ms(self.timeout))
        found |= {name: topic for name in CALLBACKS if (topic := getattr(self, name)) is not None}
        parse_fields(found)
        return json.dumps(found, separators=(",", ":"))


def with_target(headers: Mapping[str, Any] | None, push: PushTarget | Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a message with its target. Raise InvalidRequest."""
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidRequest(f"headers: a mapping is expected, not {type(headers).__name__}")
    target = push if isinstance(push, PushTarget) else PushTarget.of(push)
    return {**(headers or {}), PUSH_HEADER: target.text()}


def parse_target(text: object) -> MessageTarget:
    """Return the target in a header `sandq-push`. Raise InvalidRequest."""
    if not isinstance(text, str):
        raise InvalidRequest(f"header {PUSH_HEADER}: a JSON object in text is expected")
    if len(text) > TEXT_CHARS:
        raise InvalidRequest(f"header {PUSH_HEADER}: {len(text)} characters, {TEXT_CHARS} are allowed")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(f"header {PUSH_HEADER}: a JSON object in text is expected")
    try:
        PushTarget.of(found)
        return parse_fields(found)
    except InvalidRequest as error:
        raise InvalidRequest(f"header {PUSH_HEADER}: {error.message.removeprefix('push: ')}") from None


def parse_fields(found: Mapping[str, Any]) -> MessageTarget:
    """Return the target with these fields. Raise InvalidRequest."""
    method = found.get("method", "POST")
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidRequest(f"push: method: one of {', '.join(METHODS)} is expected, not {method!r:.40}")
    try:
        timeout_ms = None if found.get("timeout") is None else parse_timeout(found["timeout"])
    except InvalidRequest as error:
        raise InvalidRequest(f"push: timeout: {error.message}") from None
    headers = () if found.get("headers") is None else parse_headers(found["headers"])
    topics = [None if found.get(name) is None else _callback(name, found[name]) for name in CALLBACKS]
    return MessageTarget(Target.parse(found["url"]), method, headers, timeout_ms, *topics)


def _callback(name: str, topic: object) -> str:
    """Return the topic of a callback. Raise InvalidRequest."""
    try:
        return check_new_topic(topic)
    except InvalidRequest as error:
        raise InvalidRequest(f"push: {name}: {error.message}") from None


def check_target(headers: Mapping[str, Any], rules: TargetRules | None) -> None:
    """Check the target in the headers of a message, if there is one. Raise InvalidRequest; Forbidden or Unavailable
    because of its callbacks.

    `rules`: the targets that the caller may use; None if the topic takes no messages with URLs.
    """
    if PUSH_HEADER not in headers:
        return
    if rules is None:
        raise InvalidRequest(
            f"header {PUSH_HEADER}: the topic takes no messages with a URL; its setting {PUSH_TARGETS} allows them"
        )
    rules.check(parse_target(headers[PUSH_HEADER]))


def parse_timeout(value: object) -> int:
    """Return the time for a request in ms. Raise InvalidRequest."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise InvalidRequest(f'a duration such as "30s" is expected, not {value!r:.40}')
    timeout_ms = duration_ms(value)
    if not TIMEOUT_LEAST_MS <= timeout_ms <= TIMEOUT_MOST_MS:
        least, most = format_duration(TIMEOUT_LEAST_MS), format_duration(TIMEOUT_MOST_MS)
        raise InvalidRequest(f"{least} to {most} is expected, not {format_duration(timeout_ms)}")
    return timeout_ms


def parse_headers(found: object) -> OwnHeaders:
    """Return headers of a request, checked. Raise InvalidRequest without their values, which may be secret."""
    if not isinstance(found, Mapping):
        raise InvalidRequest("headers: names with text are expected")
    if len(found) > HEADERS_MOST:
        raise InvalidRequest(f"headers: {len(found)} of them, {HEADERS_MOST} are allowed")
    headers = {}
    for given, value in found.items():
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise InvalidRequest(f"headers: {given!r:.80} is no name of an HTTP header")
        name = given.lower()
        if name in _REFUSED or name.startswith(_OURS):
            raise InvalidRequest(f"headers: {name[:80]} is set by the sender only")
        if name in headers:
            raise InvalidRequest(f"headers: {name[:80]} is given twice")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise InvalidRequest(f"headers: {name[:80]}: printable ASCII text without spaces at its ends is expected")
        headers[name] = value
    if (size := sum([len(name) + len(value) for name, value in headers.items()])) > HEADERS_BYTES:
        raise InvalidRequest(f"headers: {size} bytes, {HEADERS_BYTES} are allowed")
    return tuple(headers.items())
