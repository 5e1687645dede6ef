"""Formats of times, windows, places and ids on the command line. All commands parse them here.

    INSTANT    2030-01-31T08:00:00Z | epoch milliseconds | +5m, -1h: from now, by this machine's clock | now
    DURATION   90s, 5m, 1h30m, 250ms, or seconds
    END        an INSTANT, or 18:00: the next time at which this machine's clock shows that
    PLACE      earliest | latest | INSTANT | an offset
    ID         26 characters, as `produce` and `message list` print them
    VERSION    likewise, as `kv` prints them; SINCE is now, earliest or a version
    R          a rate: messages a second

A sign marks a duration from now: no instant begins with a sign.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # some click versions make this class generic, some do not

F = TypeVar("F", bound=Callable[..., Any])

NOW = "now"
EARLIEST = "earliest"
LATEST = "latest"
DEFAULT_LIMIT = 100
ALL = "all"
_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
RATE_LEAST, RATE_MOST = 0.001, 10_000_000


def now_ms() -> int:
    """Return this machine's wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def instant(text: str) -> int:
    """Parse an instant into epoch milliseconds. Raises InvalidTime."""
    from sandq.model.errors import InvalidTime
    from sandq.model.times import LEAST_INSTANT_MS, TIME_MAX_MS, instant_ms

    if text == NOW:
        ms = now_ms()
    elif text[:1] in ("+", "-"):
        ms = now_ms() + shift_ms(text)
    else:
        try:
            ms = instant_ms(text)
        except InvalidTime as error:
            raise InvalidTime(f"{error.message}{_from_now_hint(text)}") from None
    # Replace an instant before 1973 by one in 1973, which is in the past, too: a smaller number of milliseconds would
    # be taken for seconds.
    return min(max(ms, LEAST_INSTANT_MS), TIME_MAX_MS)


def end_instant(text: str) -> int:
    """Parse an instant, or a time of day of this machine's time zone, into epoch milliseconds. Raises InvalidTime."""
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        return instant(text)
    now = datetime.fromtimestamp(now_ms() / 1000)
    end = now.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
    if end <= now:
        end += timedelta(days=1)
    return int(end.timestamp()) * 1000


def _from_now_hint(text: str) -> str:
    """Return a hint how to write a duration from now, for a text that is not an instant."""
    from sandq.model.errors import InvalidTime
    from sandq.model.times import duration_ms, format_duration

    hint = '; nor is it a duration from now, which has its sign: "+5m", "-1h"'
    try:
        if not text.isdecimal():
            return f'; a duration from now has its sign: "+{format_duration(duration_ms(text))}"'
    except InvalidTime as error:
        _, written, duration = error.message.rpartition("it is written ")
        if written:
            return f"; a duration from now has its sign: {duration.replace(chr(34), chr(34) + '+', 1)}"
    return hint


def shift_ms(text: str) -> int:
    """Parse a duration that may have a sign, into milliseconds."""
    from sandq.model.times import duration_ms

    sign = -1 if text.startswith("-") else 1
    return sign * duration_ms(text[1:] if text[:1] in ("+", "-") else text)


class _Checked(_Type):
    """A click type that parses values by a function. A value that the function refuses is wrong usage."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sandq.model.errors import InvalidRequest

        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except InvalidRequest as error:
            self.fail(error.message, param, ctx)


def _duration(text: str) -> timedelta:
    from sandq.model.times import duration_ms

    return timedelta(milliseconds=duration_ms(text))


def _shift(text: str) -> timedelta:
    return timedelta(milliseconds=shift_ms(text))


def _id(text: str) -> str:
    from sandq.model.offsets import from_text, to_text

    return to_text(from_text(text))


def _place(text: str) -> str | int:
    from sandq.model.errors import InvalidRequest

    if text in (EARLIEST, LATEST):
        return text
    try:
        return _id(text)
    except InvalidRequest:
        pass
    try:
        return instant(text)
    except InvalidRequest:
        raise InvalidRequest(
            f"{text!r} is not a position in a topic: expected earliest, latest, an instant or an offset (26 characters)"
        ) from None


def _since(text: str) -> str:
    from sandq.model.errors import InvalidRequest

    if text in (NOW, EARLIEST):
        return text
    try:
        return _id(text)
    except InvalidRequest:
        raise InvalidRequest(f"{text!r} is neither {NOW} nor {EARLIEST} nor a version (26 characters)") from None


def _limit(text: str) -> int | None:
    from sandq.model.errors import InvalidRequest

    if text == ALL:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15 and int(text)):
        raise InvalidRequest(f"{text!r} is neither a number of 1 or more nor {ALL}")
    return int(text)


def _rate(text: str) -> float:
    from sandq.model.errors import InvalidRequest

    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not RATE_LEAST <= rate <= RATE_MOST:
        raise InvalidRequest(f"{text!r} is not a rate: expected messages a second, {RATE_LEAST:g} to {RATE_MOST:,}")
    return rate


INSTANT = _Checked("instant", instant)
END = _Checked("end", end_instant)
RATE = _Checked("rate", _rate)
DURATION = _Checked("duration", _duration)
SHIFT = _Checked("shift", _shift)
PLACE = _Checked("place", _place)
ID = _Checked("id", _id)
VERSION = _Checked("version", _id)
SINCE = _Checked("since", _since)
_LIMIT = _Checked("limit", _limit)


def limit_option(command: F) -> F:
    """Add `--limit` for commands that list; None means all."""
    return click.option(
        "--limit",
        type=_LIMIT,
        default=str(DEFAULT_LIMIT),
        metavar=f"N|{ALL}",
        show_default=True,
        help="Show up to this many. If there are more, standard error says so.",
    )(command)


def newest_option(command: F) -> F:
    """Add `--newest`, for commands that list by delivery time."""
    return click.option("--newest", is_flag=True, help="Begin with the latest delivery time.")(command)


def raw(text: str | None) -> bytes | None:
    """Return an argument's bytes as they were typed."""
    return None if text is None else os.fsencode(text)


@dataclass(frozen=True)
class Window:
    """Window of messages: a range of delivery times, keys with the same beginning, or all messages."""

    since: int | None
    until: int | None
    key_prefix: bytes | None = None
    unique_key_prefix: bytes | None = None

    @classmethod
    def of(
        cls,
        since: int | None,
        until: int | None,
        key_prefix: str | None = None,
        unique_key_prefix: str | None = None,
    ) -> Window:
        """Raise UsageError if the window is always empty."""
        if since is not None and until is not None and until <= since:
            raise click.UsageError("--until is not later than --since: the window is empty")
        return cls(since, until, raw(key_prefix), raw(unique_key_prefix))

    @property
    def is_open(self) -> bool:
        """Return whether the window includes all messages."""
        return not self.arguments()

    def arguments(self) -> dict[str, Any]:
        """Return the given bounds as the client takes them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def check_prefixes(self) -> None:
        """Raise UsageError for an empty prefix.

        Every key begins with it, so an unset variable of a script would select all messages."""
        for name in ("key_prefix", "unique_key_prefix"):
            if getattr(self, name) == b"":
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option}: it is empty; give the beginning of a key, or --all")

    def text(self, what: str) -> str:
        """Return " due from ... until ..., with keys that begin with ..."; empty if the window has no bounds."""
        from sandq.model.times import format_instant

        parts = []
        if self.since is not None:
            parts.append(f"{what} from {format_instant(self.since)} on")
        if self.until is not None:
            parts.append(f"{'and ' if parts else f'{what} '}before {format_instant(self.until)}")
        for what, prefix in (("keys", self.key_prefix), ("unique keys", self.unique_key_prefix)):
            if prefix is not None:
                parts.append(f"with {what} that begin with {prefix.decode('utf-8', 'backslashreplace')!r}")
        return "".join(f" {part}" for part in parts)


def window_options(what: str, *, unique: bool = False) -> Callable[[F], F]:
    """Add `--since`, `--until` and `--key-prefix`. `what` says which instant of a message they limit.

    `unique`: also add `--unique-key-prefix`."""

    def add(command: F) -> F:
        if unique:
            text = "Only messages whose unique key begins with this."
            command = click.option("--unique-key-prefix", metavar="TEXT", help=text)(command)
        command = click.option("--key-prefix", metavar="TEXT", help="Only messages whose key begins with this.")(
            command
        )
        command = click.option("--until", type=INSTANT, metavar="INSTANT", help=f"{what} before this moment.")(command)
        return click.option("--since", type=INSTANT, metavar="INSTANT", help=f"{what} at this moment or later.")(
            command
        )

    return add


def end_text(until: int | None, for_: timedelta | None) -> str:
    """Return " until ..." or " for ...". Empty for a pause without an end."""
    from sandq.model.times import duration_ms, format_duration, format_instant

    if until is not None:
        return f" until {format_instant(until)}"
    return "" if for_ is None else f" for {format_duration(duration_ms(for_))}"
