"""The push of a group: a URL to which each due message of the group is sent, or the URLs of the messages.

The metadata stores it as a map: `url` (None: each message has its own, `message_targets`), `secrets` (which sign,
newest first), `concurrency`, `timeout_ms`, `on_429` unless it is `snooze`, and `headers` of the requests if there are
any. PERSISTED.
Secrets and the values of headers are never shown again: `shown` returns the parts that may be shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from sandq.model.errors import InvalidRequest, InvalidSetting, SandqError
from sandq.model.message_targets import parse_headers, parse_timeout
from sandq.model.push_targets import Target, shown_url
from sandq.model.times import format_duration
from sandq.model.webhooks import secret_hint, secret_key

Push = Mapping[str, Any]

CONCURRENCY: Final = 10
"""Default of the maximum number of concurrent requests of a group from each node."""
CONCURRENCY_MOST: Final = 100
TIMEOUT_MS: Final = 30_000
SECRETS_MOST: Final = 4
_UNKNOWN_SHOWN: Final = 5
SNOOZE: Final = "snooze"
PAUSE_TENANT: Final = "pause_tenant"
PAUSE_GROUP: Final = "pause_group"
PAUSE_LIMIT: Final = "pause_limit"
ON_429: Final = (SNOOZE, PAUSE_TENANT, PAUSE_GROUP, PAUSE_LIMIT)
"""Reactions to a response 429 with `Retry-After`. Each of them snoozes the message."""
OF_GROUP: Final = "group"
OF_MESSAGE: Final = "message"
TARGETS: Final = (OF_GROUP, OF_MESSAGE)
"""Where the URL of a request is: in the push of the group, or in the message."""
SETTINGS: Final = (
    *("url", "targets", "secrets", "keep_secrets", "headers", "concurrency", "request_timeout", "on_429"),
)
HIDDEN: Final = "…"
"""Shown in place of the value of a header."""


def changed_push(old: Push | None, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the push of a group after a user's changes. Settings that are not given keep their value, or get the
    default.

    `secrets`: sign from now on; with `keep_secrets`, the previous secrets sign as well. Raise InvalidSetting, which
    names every mistake.
    """
    unknown = islice((str(name) for name in given if name not in SETTINGS), _UNKNOWN_SHOWN)
    mistakes = [f"{name[:40]}: no setting of a push; there are {', '.join(SETTINGS)}" for name in unknown]
    before: Push = old or {}
    push = {
        "url": before.get("url"),
        "secrets": list(before.get("secrets", ())),
        "concurrency": before.get("concurrency", CONCURRENCY),
        "timeout_ms": before.get("timeout_ms", TIMEOUT_MS),
        "on_429": before.get("on_429", SNOOZE),
        "headers": dict(before.get("headers", {})),
    }
    for name, parse in (
        ("url", _url),
        ("concurrency", _concurrency),
        ("request_timeout", _timeout_ms),
        ("secrets", _secrets),
        ("on_429", _on_429),
        ("headers", _headers),
    ):
        if given.get(name) is not None:
            try:
                push["timeout_ms" if name == "request_timeout" else name] = parse(given[name])
            except SandqError as error:
                mistakes.append(error.message if error.message.startswith(name) else f"{name}: {error.message}")
    targets = given.get("targets")
    if targets is not None and targets not in TARGETS:
        mistakes.append(f"targets: one of {', '.join(TARGETS)} is expected, not {targets!r:.40}")
    if targets == OF_MESSAGE:
        push["url"] = None
    is_by_message = targets == OF_MESSAGE or (old is not None and push["url"] is None and targets is None)
    is_elsewhere = old is not None and push["url"] != before.get("url")
    if is_elsewhere and push["headers"] and given.get("headers") is None:
        mistakes.append("headers: another url needs headers of its own: give them with it, or {} for none")
    if is_elsewhere and (given.get("secrets") is None or given.get("keep_secrets")):
        # Otherwise the new receiver would get signatures that the old receiver accepts.
        mistakes.append("secrets: another url needs secrets of its own: give them with it, without keep_secrets")
    keeps = given.get("keep_secrets", False)
    if type(keeps) is not bool:
        mistakes.append(f"keep_secrets: true or false is expected, not {keeps!r:.40}")
    elif keeps:
        if given.get("secrets") is None:
            mistakes.append("keep_secrets: it goes with secrets, which then sign in addition to the earlier ones")
        push["secrets"] = list(dict.fromkeys([*push["secrets"], *before.get("secrets", ())]))[:SECRETS_MOST]
    if is_by_message:
        mistakes += _of_messages(given, push)
    elif not mistakes and push["url"] is None:
        mistakes.append("url: it is missing, and the group has none yet")
    if not mistakes and not push["secrets"]:
        mistakes.append("secrets: one is needed, which signs (sandctl group push set --new-secret makes one)")
    if mistakes:
        raise InvalidSetting("; ".join(mistakes), mistakes=mistakes)
    if push["on_429"] == SNOOZE:
        del push["on_429"]
    if not push["headers"]:
        del push["headers"]
    return push


def _of_messages(given: Mapping[str, object], push: Push) -> Iterator[str]:
    """Yield the mistakes in a push whose messages have their own URLs."""
    if given.get("url") is not None:
        yield "url: with targets message, each message has its own: give one of the two"
    if push["headers"]:
        # Each producer chooses the receiver, so these headers would be known to all producers.
        yield "headers: with targets message, each message has its own"
    if push["on_429"] != SNOOZE:
        yield "on_429: with targets message, only snooze is possible: other messages have other receivers"


def check_push(given: Mapping[str, object]) -> None:
    """Raise InvalidSetting for changes that would be invalid for any push."""
    url = None if given.get("targets") == OF_MESSAGE else given.get("url") or "https://unknown"
    changed_push({"url": url, "secrets": ["unknown"]}, given)


def shown(push: Push) -> dict[str, Any]:
    """Return the parts of a push that may be shown: hints of its secrets, its URL without the values in its query, and
    the names of its headers."""
    url = push["url"]
    return {
        "url": None if url is None else shown_url(url),
        **({"targets": OF_MESSAGE} if url is None else {}),
        "secrets": [secret_hint(secret) for secret in push["secrets"]],
        "concurrency": push["concurrency"],
        "request_timeout": format_duration(push["timeout_ms"]),
        **({"on_429": push["on_429"]} if "on_429" in push else {}),
        **({"headers": dict.fromkeys(push["headers"], HIDDEN)} if "headers" in push else {}),
    }


def _url(value: object) -> str:
    """Return the URL of a target, checked."""
    Target.parse(value)
    return str(value)


def _concurrency(value: object) -> int:
    """Return a number of requests at a time, checked."""
    if type(value) is not int or not 1 <= value <= CONCURRENCY_MOST:
        raise InvalidRequest(f"a whole number from 1 to {CONCURRENCY_MOST} is expected, not {value!r:.40}")
    return value


def _on_429(value: object) -> str:
    """Return a reaction to 429, checked."""
    if value not in ON_429:
        raise InvalidRequest(f"one of {', '.join(ON_429)} is expected, not {value!r:.40}")
    return str(value)


def _timeout_ms(value: object) -> int:
    """Return the duration in a text in ms, checked."""
    if not isinstance(value, str):
        raise InvalidRequest(f'a duration such as "30s" is expected, not {value!r:.40}')
    return parse_timeout(value)


def _headers(value: object) -> dict[str, str]:
    """Return headers of the requests, checked."""
    return dict(parse_headers(value))


def _secrets(value: object) -> list[str]:
    """Return secrets, checked and without repetitions."""
    if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= SECRETS_MOST:
        raise InvalidRequest(f"1 to {SECRETS_MOST} secrets are expected")
    for secret in value:
        secret_key(secret)
    return list(dict.fromkeys(value))
