"""Parsing of options, for the source and the sink: texts by name; the case of names does not matter.

Mistakes are collected instead of raised, so that one error names all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.ports import parse_server
from sandq.model.times import duration_ms, format_duration

SERVERS: Final = "sandq.bootstrap.servers"
_SHOWN_CHARS: Final = 80

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Side:
    """The source or the sink (`name`), and the names of its options.

    `path`: the hint if a user gives a path. `of_spark`: names, in lower case, of options that Spark uses itself and
    also passes on.
    """

    name: str
    options: tuple[str, ...]
    path: str
    of_spark: frozenset[str] = frozenset()

    def by_lower(self) -> dict[str, str]:
        """Return the names of the options by their lower-case form."""
        return {option.lower(): option for option in self.options}

    def unknown(self, given: str) -> str:
        """Return the error text for an unknown option, with a suggestion."""
        lower, proper = given.lower(), self.by_lower()
        if lower == "path":
            return f"path: {self.path}"
        if lower.startswith("kafka."):
            return f"{shown(given)}: that is an option of Kafka's {self.name}; the brokers are named with {SERVERS}"
        close = difflib.get_close_matches(lower, proper, n=1)
        if not close:
            # A name within another, such as "sandq.subscribe", or "servers" for sandq.bootstrap.servers.
            close = [name for name in proper if name in lower or (len(given) > 3 and lower in name)]
        hint = f"did you mean {proper[close[0]]}?" if close else f"there are {', '.join(self.options)}"
        return f"{shown(given)}: no such option; {hint}"

    def refuse(self, mistakes: Sequence[str]) -> None:
        """Raise InvalidSetting with all mistakes, if there are any."""
        if mistakes:
            raise InvalidSetting(f"sandq {self.name}: " + "; ".join(mistakes))


class OptionTexts:
    """The given options by name, and the mistakes found in them so far."""

    def __init__(self, options: Mapping[str, str], side: Side) -> None:
        self.mistakes: list[str] = []
        self._texts: dict[str, str] = {}
        proper = side.by_lower()
        for given, text in options.items():
            name = proper.get(given.lower())
            if name is None:
                if given.lower() not in side.of_spark:
                    self.mistakes.append(side.unknown(given))
            elif name in self._texts:
                self.mistakes.append(f"{name}: it is given twice, in different upper and lower case")
            else:
                self._texts[name] = text.strip()

    @property
    def names(self) -> frozenset[str]:
        """Names of the options that were given."""
        return frozenset(self._texts)

    def value(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        """Return the parsed value of an option.

        Returns `default` if the option is missing or wrong. It is wrong if `parse` raises InvalidRequest: that adds a
        mistake.
        """
        if name not in self._texts:
            return default
        try:
            return parse(self._texts[name])
        except InvalidRequest as error:
            self.mistakes.append(f"{name}: {error.message}")
            return default


# ------------------------------------------------------------------------------------------------ single values


def shown(value: object) -> str:
    """Return a user's value as error messages show it: shortened if it is long."""
    text = str(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def servers(text: str) -> tuple[str, ...]:
    """Parse "host:port,host:port"."""
    found = tuple(part.strip() for part in text.split(","))
    for server in found:
        parse_server(server)
    return found


def truth(text: str) -> bool:
    """Parse "true" or "false" in upper or lower case."""
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"true or false is expected, not {shown(text)!r}")
    return text.lower() == "true"


def one_of(choices: Mapping[str, T]) -> Callable[[str], T]:
    """Return a parser that accepts the words of `choices`, in upper or lower case, and returns their values."""

    def parse(text: str) -> T:
        if text.lower() not in choices:
            raise InvalidRequest(f"one of {', '.join(choices)} is expected, not {shown(text)!r}")
        return choices[text.lower()]

    return parse


def whole_number(most: int) -> Callable[[str], int]:
    """Return a parser of decimal numbers within 1..`most`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 18 and 1 <= int(text) <= most):
            raise InvalidRequest(f"a whole number within 1..{most} is expected, not {shown(text)!r}")
        return int(text)

    return parse


def duration_within(least_ms: int, most_ms: int) -> Callable[[str], int]:
    """Return a parser of durations (`model.times`) within these limits; its result is in milliseconds."""

    def parse(text: str) -> int:
        ms = duration_ms(text)
        if not least_ms <= ms <= most_ms:
            raise InvalidRequest(f"{format_duration(least_ms)} to {format_duration(most_ms)} is expected")
        return ms

    return parse
