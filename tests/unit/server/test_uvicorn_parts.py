"""Tests that the parts of uvicorn that `connections` overrides or uses are unchanged (ADR 25)."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from sandq.broker.memory_budget import Account
from sandq.server.http.bounds import Deadlines
from sandq.server.http.connections import HttpServer, _Connection
from tests.support.paths import ROOT

READ = "read what changed in uvicorn, then connections and ADR 25, and put it here as it is now"
OVERRIDDEN = {
    "__init__": ["self", "config", "server_state", "app_state", "_loop"],
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "eof_received": ["self"],
    "shutdown": ["self"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_header": ["self", "name", "value"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "_start_asgi_task": ["self", "cycle", "app"],
    "on_response_complete": ["self"],
    "pause_writing": ["self"],
    "resume_writing": ["self"],
}
CALLED = {"_unset_keepalive_if_required": ["self"], "timeout_keep_alive_handler": ["self"]}
OF_A_CONNECTION = [
    "app",
    "app_state",
    "client",
    "config",
    "cycle",
    "flow",
    "headers",
    "loop",
    "parser",
    "pipeline",
    "timeout_keep_alive_task",
    "transport",
]
OF_A_CYCLE = ["disconnected", "keep_alive", "message_event", "more_body", "response_complete", "response_started"]


@pytest.mark.parametrize("name", [*OVERRIDDEN, *CALLED])
def test_used_method_exists_with_the_same_parameters(name: str) -> None:
    method = HttpToolsProtocol.__dict__.get(name)
    assert method is not None, f"HttpToolsProtocol.{name} is gone: {READ}"
    assert list(inspect.signature(method).parameters) == {**OVERRIDDEN, **CALLED}[name], f"{name}: {READ}"


class Empty:
    """A class with only the attributes that every class has."""


def test_overridden_methods_are_listed_here_and_in_the_adr() -> None:
    ours = {name for name in vars(_Connection) if name in vars(HttpToolsProtocol)} - {*vars(Empty)}
    assert ours == set(OVERRIDDEN)
    page = (ROOT / "docs/adr/0025-http-has-a-process-of-its-own.md").read_text()
    assert {name for name in [*ours, *CALLED] if f"`{name}`" not in page} == {"__init__"}


async def nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


def test_used_parts_of_uvicorn_exist() -> None:
    loop = asyncio.new_event_loop()
    try:
        server = HttpServer(nothing, 1, Account(0), Deadlines())
        protocol = HttpToolsProtocol(server.config, server.state, {}, loop)
    finally:
        loop.close()
    assert [name for name in OF_A_CONNECTION if name not in vars(protocol)] == [], READ
    cycle = inspect.getsource(RequestResponseCycle.__init__)
    assert [name for name in OF_A_CYCLE if f"self.{name} = " not in cycle] == [], READ
    flow = flow_control.FlowControl
    assert [name for name in ("drain", "pause_reading", "resume_reading") if not hasattr(flow, name)] == [], READ
    assert {"connections", "default_headers"} <= set(vars(ServerState())), READ
    assert STATUS_LINE[431].startswith(b"HTTP/1.1 431 ") and STATUS_LINE[431].endswith(b"\r\n")


def test_source_of_used_parts_is_unchanged() -> None:
    """Names can stay the same while the order of calls changes. `connections` also relies on this order."""
    code = "".join(map(inspect.getsource, (HttpToolsProtocol, RequestResponseCycle, flow_control.FlowControl)))
    digest = hashlib.sha256(re.sub(r"\s+", " ", code).encode()).hexdigest()[:16]
    assert digest == "08d283fea07d7abb", f"{httptools_impl.__name__}: {READ}"
