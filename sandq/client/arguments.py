"""Reject unknown keyword arguments with a TypeError that names the argument that was probably meant.

Python itself makes such suggestions since 3.13, except for methods that pass on `**options`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K", bound=type)

HOT = frozenset(["send"])
"""Methods that are called once per message and list their options explicitly.

They are not decorated: checking the names would add 0.2 us to a call of about 1.3 us. Python's TypeError names the
wrong argument anyway.
"""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the hint for an error, "; did you mean 'delay'?", or "" if no known name is similar."""
    close = difflib.get_close_matches(str(name)[:80], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def list_options(method: F, options: type, defaults: Mapping[str, Any]) -> F:
    """Make the signature of a method list the keys of a TypedDict in place of its `**options`.

    `defaults`: default values of options; an option that is not in it has the default None. `suggesting` rejects
    unknown names when the method is called.
    """
    signature = inspect.signature(method)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    listed = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=getattr(annotation, "__forward_arg__", annotation),
        )
        for name, annotation in options.__annotations__.items()
    ]
    listing: Any = method
    listing.__signature__ = signature.replace(parameters=[*own, *listed])
    return method


def suggesting(kind: K) -> K:
    """Decorate a class: its public methods reject unknown keyword arguments with the most similar name."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        is_left_to_python = name in HOT or sys.version_info >= (3, 13)
        if is_left_to_python and not hasattr(member, "__signature__"):  # see `list_options`
            continue
        if (known := keywords(member)) and not _takes_any_name(member):
            setattr(kind, name, _suggesting(member, frozenset(known)))
    return kind


def _takes_any_name(method: Callable[..., Any]) -> bool:
    """Return whether a method passes on arbitrary settings. The broker checks their names."""
    kinds = [each.kind for each in inspect.signature(method).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def keywords(method: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a method, without `self`, that a call may pass by keyword."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in [*inspect.signature(method).parameters.values()][1:] if each.kind in by_name]


def _suggesting(method: Callable[..., Any], known: frozenset[str]) -> Callable[..., Any]:
    def refused(kwargs: dict[str, Any]) -> TypeError:
        wrong = next(name for name in kwargs if name not in known)
        close = difflib.get_close_matches(wrong, known, n=1)
        hint = f". Did you mean {close[0]!r}?" if close else ""
        return TypeError(f"{method.__qualname__}() got an unexpected keyword argument {wrong!r}{hint}")

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not known.issuperset(kwargs):
            raise refused(kwargs)
        return method(*args, **kwargs)

    @functools.wraps(method)
    async def wait(*args: Any, **kwargs: Any) -> Any:
        # The wrapper must be a coroutine function as well: libraries that run functions in the background call plain
        # functions in a thread.
        if not known.issuperset(kwargs):
            raise refused(kwargs)
        return await method(*args, **kwargs)

    return wait if inspect.iscoroutinefunction(method) else call
