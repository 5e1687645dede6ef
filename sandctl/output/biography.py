"""The history of a message as lines of text: the output of `message why`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sandctl.output.records import key_cell, when

_ERROR_CHARS = 200
_INDENT = "  "


def biography(found: Mapping[str, Any], topic: str, now_ms: int) -> Iterator[str]:
    """Return the history line by line; `found` is the result of `client.messages(topic).why`."""
    yield f"message {found['id']} of topic {topic}: {found['state']}"
    for name, text in _facts(found, now_ms):
        yield f"{_INDENT}{name:<11}{text}"
    groups = found.get("groups") or ()
    if not groups:
        yield ""
        yield "no group has subscribed to this topic yet, so no consumer receives it"
    for group in groups:
        yield ""
        yield f"group {group['group']}: {group['state']}"
        for name, text in _group_facts(group, now_ms):
            yield f"{_INDENT}{name:<11}{text}"


def _facts(found: Mapping[str, Any], now_ms: int) -> Iterator[tuple[str, str]]:
    """Return the events of the message itself, in order."""
    from sandq.model.times import format_duration

    for name in ("key", "unique_key"):
        if found.get(name) is not None:
            yield name.replace("_", " "), str(key_cell(found[name]))
    if found.get("priority"):
        yield "priority", str(found["priority"])
    if found.get("tenant") is not None:
        yield "tenant", str(found["tenant"])
    if found.get("max_attempts") is not None:
        yield "attempts", "no limit" if found["max_attempts"] == "none" else f"{found['max_attempts']} at most"
    if found.get("cost") is not None:
        yield "cost", f"{found['cost']:,}"
    if found.get("backoff") is not None:
        yield "back-off", ", ".join(f"{name} {value}" for name, value in found["backoff"].items())
    if found.get("size") is not None:
        yield "size", f"{found['size']:,} bytes"
    yield "created", moment(found["created_ms"], now_ms)
    deliver_ms = found.get("deliver_ms", found.get("deliver_at_ms"))
    moves = found.get("moves") or 0
    if moves:
        times = "once" if moves == 1 else f"{moves} times"
        yield "due first", moment(found["due_ms"], now_ms)
        yield "moved", f"{times}, last {moment(found['moved_ms'], now_ms)}"
    if deliver_ms is not None:
        yield "due", moment(deliver_ms, now_ms)
        ttl_ms = found.get("ttl_ms")
        if ttl_ms is not None:
            yield "expires", f"{moment(deliver_ms + ttl_ms, now_ms)}, its ttl is {format_duration(ttl_ms)}"


def _group_facts(group: Mapping[str, Any], now_ms: int) -> Iterator[tuple[str, str]]:
    yield from _history(group, now_ms)
    if group.get("consumer") is not None:
        deadline_ms = group.get("deadline_ms")
        until = "" if deadline_ms is None else f" until {moment(deadline_ms, now_ms)}"
        yield "held by", f"{group['consumer']}, attempt {group['attempt']},{until}".rstrip(",")
        if group.get("lease_token") is not None:
            yield "lease", str(group["lease_token"])
    elif group.get("due_ms") is not None:
        after = f"after attempt {group['attempt']}" if group["attempt"] else "no attempt was counted"
        yield "back", f"{moment(group['due_ms'], now_ms)}, {after}"
    if group.get("expires_ms") is not None:
        end = "is dropped" if group.get("on_expiry") == "drop" else "becomes a dead letter"
        yield "expires", f"{moment(group['expires_ms'], now_ms)}; unless it is leased, it {end} then"
    if group.get("snoozes"):
        count = group["snoozes"]
        yield "snoozed", "once" if count == 1 else f"{count:,} times"
    if group.get("reclaims"):
        count = group["reclaims"]
        yield "reclaimed", "once" if count == 1 else f"{count:,} times"
    if group.get("error"):
        yield "error", _line(group["error"])
    count = group.get("consumers")
    if count is not None:
        yield "consumers", f"{count:,} connected" if count else "none connected"
    if group.get("reason"):
        yield "waits for", str(group["reason"])


def _history(group: Mapping[str, Any], now_ms: int) -> Iterator[tuple[str, str]]:
    """Return the attempts. A redriven message has several lives; in each, attempts count from 1."""
    history, lives = list(group.get("history") or ()), group.get("lives") or ()
    for life in lives:
        tries = "1 attempt" if life.attempts == 1 else f"{life.attempts} attempts"
        died, redriven = moment(life.dead_ms, now_ms), moment(life.redriven_ms, now_ms)
        error = f": {_line(life.error)}" if life.error else ""
        yield f"life {life.life}", f"died {died} after {tries} ({life.reason}), redriven {redriven}{error}"
        for row in life.history:
            yield f"attempt {row[0]}", _attempt(row, now_ms)
        del history[: len(life.history)]
    if lives:
        yield f"life {lives[-1].life + 1}", f"since {moment(lives[-1].redriven_ms, now_ms)}"
    for row in history:
        yield f"attempt {row[0]}", _attempt(row, now_ms)


def _attempt(row: Any, now_ms: int) -> str:
    """Return when the attempt began, whose it was, how long it took, and how it ended."""
    from sandq.model.times import format_duration

    _, consumer, leased_ms, ended_ms, outcome, error = row
    text = f"{moment(leased_ms, now_ms)} by {consumer or 'an unknown consumer'}"
    if ended_ms is not None:
        text += f", {outcome or 'ended'} after {format_duration(max(0, ended_ms - leased_ms))}"
    elif outcome:
        text += f", {outcome}"
    return f"{text}: {_line(error)}" if error else text


def _line(text: str) -> str:
    """Return an error on one line."""
    text = " ".join(text.split())
    return text if len(text) <= _ERROR_CHARS else text[: _ERROR_CHARS - 1] + "…"


def moment(ms: int, now_ms: int) -> str:
    """Return an instant, and its distance from now."""
    return f"{when(ms)} ({distance(ms - now_ms)})"


def distance(ms: int) -> str:
    """Return "in 5m12s", "3d4h ago" or "now", rounded for people."""
    from sandq.model.times import format_duration

    size_ms = abs(ms)
    for coarse_ms, unit_ms in ((86_400_000, 3_600_000), (3_600_000, 60_000), (1000, 1000)):
        if size_ms >= coarse_ms:
            size_ms -= size_ms % unit_ms
            break
    if not size_ms:
        return "now"
    return f"in {format_duration(size_ms)}" if ms > 0 else f"{format_duration(size_ms)} ago"
