"""The options of a message are defined once: signatures that spell them out say the same as `SendOptions`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import sandq
from sandq.client.json_format import KNOWN
from sandq.client.producer.send_options import SEND_DEFAULTS, SendOptions
from sandq.client.producer.validation import MessageValidation
from sandq.server.http.bodies import MessageIn

OPTIONS = SendOptions.__annotations__
NOT_IN_JSON = {"partition"}
"""In HTTP requests the path names the partition."""
OF_THE_REQUEST = {"on_conflict", "max_wait", "window", "edge"}
"""Options of the request and not of a message."""
NOT_SENT_BY_ACKS = {"delay_ms", "partition", "unique_key"} | OF_THE_REQUEST


def listed(method: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Return the type and the default of each keyword option of the method, in order."""
    parameters = inspect.signature(method).parameters
    return {name: (each.annotation, each.default) for name, each in parameters.items() if name in OPTIONS}


DEFINED = {name: (kind.__forward_arg__, SEND_DEFAULTS.get(name)) for name, kind in OPTIONS.items()}


@pytest.mark.parametrize("method", [sandq.Producer.send, sandq.sync.Producer.send, MessageValidation.message])
def test_hot_methods_spell_out_the_options(method: Callable[..., Any]) -> None:
    assert list(listed(method).items()) == list(DEFINED.items())


@pytest.mark.parametrize("api", [sandq.Client, sandq.Producer, sandq.sync.Client, sandq.sync.Producer])
def test_signatures_list_the_options(api: Any) -> None:
    for name in {"produce", "send", "send_many"} & set(dir(api)):
        method = getattr(api, name)
        assert list(listed(method).items()) == list(DEFINED.items()), name
        kinds = {each.kind for each in inspect.signature(method).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, name


def test_json_messages_have_the_same_options() -> None:
    def plain(names: Any) -> set[str]:
        return {name.removesuffix("_base64") for name in names} - {"text", "value", "json", "json_"}

    assert plain(MessageIn.model_fields) == OPTIONS.keys() - NOT_IN_JSON
    assert plain(KNOWN) == OPTIONS.keys() - NOT_IN_JSON - OF_THE_REQUEST


def test_outgoing_messages_have_the_same_options() -> None:
    found = {each.name for each in fields(sandq.Outgoing)} - {"value", "json", "topic"}
    assert found == OPTIONS.keys() - NOT_SENT_BY_ACKS
