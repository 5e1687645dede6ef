"""Say which argument was meant when a call names one that there is not, as Python does itself from 3.13 on."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

K = TypeVar("K", bound=type)

HOT = frozenset(["send"])
"""Called for each of very many messages: the suggestion would cost 0.2 us where a call takes 3 us. The TypeError names
the wrong argument all the same."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """What to append to a mistake: "; did you mean 'delay'?", or nothing when no known name is like it."""
    close = difflib.get_close_matches(str(name)[:80], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def suggesting(kind: K) -> K:
    """Decorate a class: the TypeError about a keyword argument that a public method does not have names the one that is
    most like it."""
    if sys.version_info < (3, 13):
        for name, member in list(vars(kind).items()):
            if not name.startswith("_") and name not in HOT and inspect.isfunction(member):
                known = keywords(member)
                # What only waits for such a method has its attributes, too.
                timed_again = getattr(member, "timed_again", None) if inspect.iscoroutinefunction(member) else None
                if known and timed_again is not None:
                    setattr(kind, name, timed_again(_suggesting(inspect.unwrap(member), known)))
                elif known:
                    setattr(kind, name, _suggesting(member, known))
    return kind


def keywords(method: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a method, without `self`, that a call may pass by keyword."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in [*inspect.signature(method).parameters.values()][1:] if each.kind in by_name]


def _suggesting(method: Callable[..., Any], known: list[str]) -> Callable[..., Any]:
    def explained(error: TypeError, kwargs: dict[str, Any]) -> TypeError:
        """The error, or one that says what was meant: where the method was not begun, for the arguments are not its
        own. Then nothing is below the frame that called it."""
        below = error.__traceback__
        if below is None or below.tb_next is not None:
            return error
        wrong = next((name for name in kwargs if name not in known), None)
        close = difflib.get_close_matches(wrong, known, n=1) if wrong is not None else []
        return TypeError(f"{error}. Did you mean {close[0]!r}?") if close else error

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            if (better := explained(error, kwargs)) is error:
                raise
        raise better

    @functools.wraps(method)
    async def wait(*args: Any, **kwargs: Any) -> Any:
        # A coroutine function, too: there is who asks whether it is one, and calls it in a thread if not.
        try:
            begun = method(*args, **kwargs)
        except TypeError as error:
            if (better := explained(error, kwargs)) is error:
                raise
        else:
            return await begun
        raise better

    return wait if inspect.iscoroutinefunction(method) else call
