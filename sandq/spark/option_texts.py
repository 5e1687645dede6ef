"""What the options of the source and of the sink have in common: texts by name, in any case, and how they are read.

Mistakes are gathered rather than raised, so that a user is told all of them at once.
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
    """The source or the sink (`name`), and its options. `path`: what to do instead of naming a path. `of_spark`: in
    lower case, what Spark takes for itself and hands over as well."""

    name: str
    options: tuple[str, ...]
    path: str
    of_spark: frozenset[str] = frozenset()

    def by_lower(self) -> dict[str, str]:
        """The proper names, by their lower case."""
        return {option.lower(): option for option in self.options}

    def unknown(self, given: str) -> str:
        """The mistake of naming an option that is not there, with the one that may have been meant."""
        lower, proper = given.lower(), self.by_lower()
        if lower == "path":
            return f"path: {self.path}"
        if lower.startswith("kafka."):
            return f"{shown(given)}: that is an option of Kafka's {self.name}; the brokers are named with {SERVERS}"
        close = difflib.get_close_matches(lower, proper, n=1)
        if not close:
            # sandq.subscribe, or servers alone
            close = [name for name in proper if name in lower or (len(given) > 3 and lower in name)]
        hint = f"did you mean {proper[close[0]]}?" if close else f"there are {', '.join(self.options)}"
        return f"{shown(given)}: no such option; {hint}"

    def refuse(self, mistakes: Sequence[str]) -> None:
        """InvalidSetting that names every mistake, when there are any."""
        if mistakes:
            raise InvalidSetting(f"sandq {self.name}: " + "; ".join(mistakes))


class OptionTexts:
    """What was given, by proper name, and what is wrong with it."""

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
                self.mistakes.append(f"{name}: it is given twice, in different case")
            else:
                self._texts[name] = text.strip()

    @property
    def names(self) -> frozenset[str]:
        """Which options were given."""
        return frozenset(self._texts)

    def one(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        """An option's value; its default when it is not given, or is wrong (`parse` raises InvalidRequest)."""
        if name not in self._texts:
            return default
        try:
            return parse(self._texts[name])
        except InvalidRequest as error:
            self.mistakes.append(f"{name}: {error.message}")
            return default


# ------------------------------------------------------------------------------------------------ single values


def shown(value: object) -> str:
    """What a user gave, as an error repeats it."""
    text = str(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def servers(text: str) -> tuple[str, ...]:
    """ "host:port,host:port"."""
    found = tuple(part.strip() for part in text.split(","))
    for server in found:
        parse_server(server)
    return found


def truth(text: str) -> bool:
    """ "true" or "false", in any case."""
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"true or false is expected, not {shown(text)!r}")
    return text.lower() == "true"


def one_of(choices: Mapping[str, T]) -> Callable[[str], T]:
    """What one of these words stands for, in any case."""

    def parse(text: str) -> T:
        if text.lower() not in choices:
            raise InvalidRequest(f"one of {', '.join(choices)} is expected, not {shown(text)!r}")
        return choices[text.lower()]

    return parse


def whole_number(most: int) -> Callable[[str], int]:
    """1 to `most`, in decimal."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 18 and 1 <= int(text) <= most):
            raise InvalidRequest(f"a whole number within 1..{most} is expected, not {shown(text)!r}")
        return int(text)

    return parse


def duration_within(least_ms: int, most_ms: int) -> Callable[[str], int]:
    """A duration as `times` has it, in milliseconds."""

    def parse(text: str) -> int:
        ms = duration_ms(text)
        if not least_ms <= ms <= most_ms:
            raise InvalidRequest(f"{format_duration(least_ms)} to {format_duration(most_ms)} is expected")
        return ms

    return parse
