"""What becomes of a message whose handler raised: it comes again, or it is dead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sandq.client.consumer.nack_change import error_text
from sandq.model.errors import InvalidRequest
from sandq.model.times import Duration, duration_ms

Types = type[BaseException] | tuple[type[BaseException], ...]
"""One class of exceptions, or several."""


class Retry(Exception):
    """Raise it in a handler of `client.run` to choose when the message comes back: `raise sandq.Retry("5m")`.

    `delay`: a duration, from now on; None is the topic's back-off. `error`: what is noted with the attempt; None is the
    exception that this one was raised from, if any. The attempt counts: at the last one the message is dead. With
    `count=False`, a snooze, it does not: what is at fault is not the message (`raise sandq.Retry("1m", count=False)`
    when another service asks to wait). The setting `max_snoozes` bounds how often.
    """

    def __init__(
        self, delay: Duration | None = None, error: str | BaseException | None = None, *, count: bool = True
    ) -> None:
        if type(count) is not bool:
            raise InvalidRequest(f"count: True or False is expected, not {count!r}")
        self.delay = delay
        self.delay_ms = None if delay is None else duration_ms(delay)
        self.error = error
        self.count = count
        super().__init__(delay, error)

    def __str__(self) -> str:
        reason = self.__cause__ if self.error is None else self.error
        return "to be tried again" if reason is None else failure_text(reason)


class Dead(Exception):
    """Raise it in a handler of `client.run` when the message cannot be done: `raise sandq.Dead("410 gone")`.

    It is dead for the group at once, whatever attempts are left. `error`: what its dead letter says; None is the
    exception that this one was raised from, if any.
    """

    def __init__(self, error: str | BaseException | None = None) -> None:
        self.error = error
        super().__init__(error)

    def __str__(self) -> str:
        reason = self.__cause__ if self.error is None else self.error
        return "given up" if reason is None else failure_text(reason)


class Rule(NamedTuple):
    """What becomes of a message."""

    is_dead: bool
    is_expected: bool
    """The handler chose it: no failure to be logged with its traceback."""
    error: str
    delay: Duration | None = None
    counts: bool = True
    """Whether the attempt does."""


class EndRules:
    """Which exceptions of a handler mean that its message is dead.

    `Retry` and `Dead` say it themselves. Of the others those of `dead_on` do, and with `retry_on` all that are not of
    it; an exception of both is of `dead_on`. What is no `Exception` (a cancellation, SystemExit) says nothing about the
    message: it comes again. A group of exceptions is dead when all of them are, unless its own class is among those.
    """

    def __init__(self, retry_on: Types | None = None, dead_on: Types = ()) -> None:
        """Raises InvalidRequest."""
        self._retry_on = None if retry_on is None else _types_of("retry_on", retry_on)
        self._dead_on = _types_of("dead_on", dead_on)

    def rule(self, error: BaseException) -> Rule:
        """Return what becomes of a message whose handler raised this."""
        all_of_it = [*_leaves(error)]
        retries = [one for one in all_of_it if isinstance(one, Retry)]
        if len(retries) == len(all_of_it):
            return _together(retries)
        if all([isinstance(one, Dead) for one in all_of_it]):
            return Rule(True, True, str(all_of_it[0]))
        return Rule(self._is_dead(error), False, failure_text(error))

    def _is_dead(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            if isinstance(error, _groups_of(self._dead_on)):
                return True
            if isinstance(error, _groups_of(self._retry_on or ())):
                return False
            return all([self._is_dead(one) for one in error.exceptions])
        if isinstance(error, Retry) or not isinstance(error, Exception):
            return False
        if isinstance(error, (Dead, *self._dead_on)):
            return True
        return self._retry_on is not None and not isinstance(error, self._retry_on)


def _together(retries: Sequence[Retry]) -> Rule:
    """What several tasks of one handler ask for: the longest delay (the topic's back-off if one of them leaves it to
    that), and the attempt counts if it does for one of them."""
    longest = max(retries, key=lambda one: one.delay_ms or 0)
    delay = None if any([one.delay is None for one in retries]) else longest.delay
    return Rule(False, True, str(longest), delay, any([one.count for one in retries]))


def _types_of(name: str, given: object) -> tuple[type[BaseException], ...]:
    types = given if isinstance(given, tuple) else (given,)
    for one in types:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidRequest(f"{name}: a class of exceptions or a tuple of them is expected, not {one!r}")
    return types


def _groups_of(types: tuple[type[BaseException], ...]) -> tuple[type[BaseException], ...]:
    """Those of these classes that are classes of groups: they are meant as a whole."""
    return tuple([one for one in types if issubclass(one, BaseExceptionGroup)])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """What is in a group, at any depth: a task group puts what it raises into a group."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def failure_text(error: str | BaseException) -> str:
    """An error as a nack carries it: type and message, bounded; the only one in a group, or the first of several."""
    more = 0
    while isinstance(error, BaseExceptionGroup):
        more += len(error.exceptions) - 1
        error = error.exceptions[0]
    try:
        text = error_text(error)
    except Exception:  # of its __str__
        text = type(error).__name__
    return error_text(f"{text} (and {more} more)") if more else text


DEFAULT_RULES: Final = EndRules()
"""Whatever is raised, the message comes again."""
