"""Decide between retry and dead for a message whose handler raised an exception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sandq.client.consumer.nack_change import error_text
from sandq.model.errors import InvalidRequest
from sandq.model.times import Duration, duration_ms

Types = type[BaseException] | tuple[type[BaseException], ...]
"""One exception class, or a tuple of them."""


class Retry(Exception):
    """Raise it in a handler of `client.run` to choose when the message is retried: `raise sandq.Retry("5m")`.

    `delay`: duration from now; None for the topic's back-off. `error`: recorded with the attempt; defaults to
    `__cause__`. The attempt counts: after the last one the message is dead. With `count=False` (a snooze) it does not
    count. Use that if the message is not at fault, for example when another service asks to wait: `raise
    sandq.Retry("1m", count=False)`. The setting `max_snoozes` limits the number of snoozes.
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
    """Raise it in a handler of `client.run` if the message can never succeed: `raise sandq.Dead("410 gone")`.

    The message is dead for the group immediately, even if attempts remain. `error`: recorded in the dead letter;
    defaults to `__cause__`.
    """

    def __init__(self, error: str | BaseException | None = None) -> None:
        self.error = error
        super().__init__(error)

    def __str__(self) -> str:
        reason = self.__cause__ if self.error is None else self.error
        return "given up" if reason is None else failure_text(reason)


class Rule(NamedTuple):
    """How to end an attempt whose handler raised an exception."""

    is_dead: bool
    is_expected: bool
    """True if the handler chose this end by raising Retry or Dead. Such an exception is logged without its
    traceback."""
    error: str
    delay: Duration | None = None
    counts: bool = True
    """True if the attempt counts."""


class EndRules:
    """Decides which exceptions of a handler make its message dead.

    `Retry` and `Dead` decide for themselves. An exception in `dead_on` makes the message dead. If `retry_on` is given,
    all exceptions outside of it do so as well; `dead_on` takes precedence. An exception that is no `Exception` (a
    cancellation, SystemExit) is not the message's fault: the message is retried. An exception group makes the message
    dead if all exceptions in it do, unless the group's own class is listed.
    """

    def __init__(self, retry_on: Types | None = None, dead_on: Types = ()) -> None:
        """Check the classes. Raises InvalidRequest."""
        self._retry_on = None if retry_on is None else _types_of("retry_on", retry_on)
        self._dead_on = _types_of("dead_on", dead_on)

    def rule(self, error: BaseException) -> Rule:
        """Return how to end the attempt of a message whose handler raised `error`."""
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
    """Combine the Retry exceptions of several tasks of one handler.

    The longest delay applies, or the topic's back-off if one of the exceptions has no delay. The attempt counts if any
    of the exceptions counts it.
    """
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
    """Return the classes that are exception groups. Such a class matches a group as a whole."""
    return tuple([one for one in types if issubclass(one, BaseExceptionGroup)])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions inside a group, at any depth: a task group wraps what its tasks raise."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def failure_text(error: str | BaseException) -> str:
    """Return the error text of a nack: type and message, bounded in length.

    For an exception group, use its first exception, and add the number of the others.
    """
    more = 0
    while isinstance(error, BaseExceptionGroup):
        more += len(error.exceptions) - 1
        error = error.exceptions[0]
    try:
        text = error_text(error)
    except Exception:  # its __str__ raised
        text = type(error).__name__
    return error_text(f"{text} (and {more} more)") if more else text


DEFAULT_RULES: Final = EndRules()
"""Rules by which every failed message is retried, unless the handler raises Dead."""
