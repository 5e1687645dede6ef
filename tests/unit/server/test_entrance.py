"""Tests of the clients that are admitted before a cluster exists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sandq.broker.access.authenticator import REQUIRE
from sandq.model.access import Right
from sandq.model.caller import ANONYMOUS, Caller
from sandq.protocol.requests import Hello
from sandq.server.entrance import FOUNDED_MS, Entrance
from sandq.server.gateway_proof import GatewayKeys, GatewayProof


class Connection:
    """A connection from the machine of the node."""

    def __init__(self) -> None:
        self.caller = Caller(ANONYMOUS, "127.0.0.1:1")
        self.certificate_name = None
        self.login = None
        self.requests = 1
        self.ended: list[Any] = []
        self.end = self.ended.append

    def log_in(self, caller: Caller, login: Any) -> None:
        self.caller, self.login = caller, login


async def test_client_that_founds_the_cluster_must_reconnect() -> None:
    connection: Any = Connection()
    waiting: list[str | None] = ["it waits"]
    wakes: list[int] = []
    logins: Any = SimpleNamespace(
        authenticator=SimpleNamespace(mode=REQUIRE),
        add=lambda one: None,
        discard=lambda one: None,
        at=lambda at_ms, call: wakes.append(at_ms) or SimpleNamespace(cancel=lambda: None),
    )
    cluster: Any = SimpleNamespace(waiting=lambda: waiting[0])
    nothing: Any = None
    proof = GatewayProof((), "node1")
    entrance = Entrance(connection, proof, logins, nothing, lambda: 1000, cluster, nothing, GatewayKeys(None, None))
    await entrance.hello(Hello(2, "raw", {}))
    assert entrance.access is not None and entrance.access.allows(Right.CLUSTER)
    waiting[0] = None
    entrance.check()
    assert wakes == [1000 + FOUNDED_MS] and not connection.ended, "pending requests are still answered"
    assert not entrance.access.allows(Right.CLUSTER), "but a pending request must not keep the administrator rights"
    connection.requests = 0
    entrance.check()
    assert [error.code for error in connection.ended] == ["UNAVAILABLE"]
