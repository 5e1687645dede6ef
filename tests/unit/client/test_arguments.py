"""Tests of unknown arguments: the TypeError names the similar argument. Tests of settings as type checkers see them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import pytest

import sandq
import sandq.sync
import sandq.testing
from sandq.client.admin import settings as typed
from sandq.client.arguments import HOT, did_you_mean, keywords, suggesting
from sandq.model import settings, tenants
from sandq.model.schema import keys_of

FACES = [
    *(getattr(sandq, name) for name in sandq.__all__ if inspect.isclass(getattr(sandq, name))),
    *(getattr(sandq.sync, name) for name in sandq.sync.__all__ if inspect.isclass(getattr(sandq.sync, name))),
    sandq.testing.Broker,
    sandq.testing.AsyncBroker,
]
SETTINGS_OF = {("Admin", "create_topic"), ("Admin", "update_topic"), ("Admin", "update_group")} | {
    (face, "create_topic") for face in ("Broker", "AsyncBroker")
}


def public_methods() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    for face in {*FACES, sandq.client.Client, type(None)} - {type(None)}:
        for name, member in inspect.getmembers(face, inspect.isfunction):
            if not name.startswith("_"):
                yield face, name, member


def test_keyword_arguments_are_typed_settings() -> None:
    taking = {
        (face.__name__, name)
        for face, name, member in public_methods()
        for parameter in inspect.signature(member).parameters.values()
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and "Unpack[" not in str(parameter.annotation)
    }
    assert taking == set()


def test_methods_with_arguments_suggest() -> None:
    names = [f"{face.__module__}.{face.__name__}.{name}" for face, name, _ in public_methods()]
    assert len(names) > 100
    for kind in (sandq.Client, sandq.Messages, sandq.sync.Client, sandq.sync.Subscription, sandq.testing.Broker):
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            own = keywords(member)
            if name.startswith("_") or not own or name in HOT or SETTINGS_OF & {(kind.__name__, name)}:
                continue
            wrong = own[-1] + "x"
            with pytest.raises(TypeError, match=rf"unexpected keyword argument '{wrong}'. Did you mean '{own[-1]}'\?"):
                call_wrongly(kind, name, member, wrong)


def call_wrongly(kind: type, name: str, member: Callable[..., Any], wrong: str) -> None:
    """Call the method with its required arguments and one unknown argument."""
    arguments: list[object] = []
    for parameter in list(inspect.signature(member).parameters.values())[1:]:
        if parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY:
            arguments.append("x")
    assert begin(member(Stub(), *arguments, **{wrong: 1})) is None, (kind, name)


def begin(found: object) -> object:
    """Return the result of a call. A coroutine is started, so that its arguments are checked."""
    if inspect.iscoroutine(found):
        found.send(None)
        found.close()
        return None
    return found


class Stub:
    """The attributes that a blocking method needs to call the async one."""

    class _portal:
        @staticmethod
        def call(work: Callable[[], object]) -> None:
            begin(work())

        @staticmethod
        def check() -> None: ...

    _inner = None


@suggesting
class Thing:
    def send(self, value: int, *, delay: int = 0) -> int:
        return value

    def keep(self, value: int, *, delay: int = 0) -> int:
        if delay == 7:
            raise TypeError("keep() got an unexpected keyword argument 'deley'")
        return value + delay

    def bare(self) -> None: ...


def test_suggestion_names_the_nearest_argument() -> None:
    thing = Thing()
    assert thing.keep(3, delay=4) == 7
    with pytest.raises(TypeError, match=r"keep\(\) got an unexpected keyword argument 'deley'. Did you mean 'delay'\?"):
        thing.keep(3, deley=4)  # type: ignore[call-arg]


def test_coroutine_functions_stay_such() -> None:
    """Libraries that run background functions check this.

    They would call other functions in a thread, without an await.
    """

    @suggesting
    class Api:
        async def later(self, delay: int = 0) -> int:
            return delay

    assert inspect.iscoroutinefunction(Api.later) and asyncio.run(Api().later(3)) == 3
    with pytest.raises(TypeError, match=r"Did you mean 'delay'\?"):
        asyncio.run(Api().later(deley=3))  # type: ignore[call-arg]
    for name in ("produce", "run", "measure"):
        assert inspect.iscoroutinefunction(getattr(sandq.Client, name)), name


def test_other_type_errors_are_unchanged() -> None:
    thing = Thing()
    with pytest.raises(TypeError, match=r"'deley'$"):
        thing.keep(3, delay=7)  # raised inside
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'value'$"):
        thing.keep()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"argument 'x'$"):
        thing.keep(3, x=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'deley'"):
        thing.send(3, deley=1)  # type: ignore[call-arg]


def test_did_you_mean() -> None:
    assert did_you_mean("deley", ["delay", "key"]) == "; did you mean 'delay'?"
    assert did_you_mean("x" * 1000, ["delay"]) == ""
    assert did_you_mean(5, ["delay"]) == ""


def literals(kind: Any) -> set[object]:
    return set(get_args(kind))


def test_typed_settings_are_those_that_the_broker_takes() -> None:
    known = {key for model in settings.CLASSES.values() for key in keys_of(model)}
    assert known == typed.TopicSettings.__annotations__.keys()
    assert keys_of(settings.GroupSettings).keys() == typed.GroupSettings.__annotations__.keys()
    assert keys_of(settings.Backoff).keys() == typed.Backoff.__annotations__.keys()
    assert keys_of(tenants.TenantSettings).keys() == typed.Tenant.__annotations__.keys()
    hints = get_type_hints(typed.Backoff)
    assert literals(hints["kind"]) == literals(settings.Backoff.model_fields["kind"].annotation)
    ordering = get_type_hints(typed.TopicSettings)["ordering"]
    assert literals(ordering) == literals(settings.TopicSettings.model_fields["ordering"].annotation)
