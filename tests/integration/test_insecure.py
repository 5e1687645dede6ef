"""A node that others can reach without TLS and authentication reports it."""

from __future__ import annotations

from pathlib import Path

import sandq
from sandq.node import run_node
from tests.support.nodes.small_node import small_config

OPEN = "listen.client on 127.1 without TLS (tls.client: require) and authentication (security.authentication: require)"


async def test_unprotected_ports_are_reported(tmp_path: Path) -> None:
    """127.1 is also the local machine, but an incomplete address may be a host name."""
    config = small_config(tmp_path, LISTEN__CLIENT="127.1:0", SECURITY__INSECURE="true")
    async with run_node(config) as node, sandq.connect(f"127.0.0.1:{node.client_port}") as client:
        assert (await client.admin.cluster())["exposed"] == [OPEN]
        assert "sandq_insecure 1" in (await node.metrics.render())[0].decode().splitlines()


async def test_on_this_machine_nothing_is(tmp_path: Path) -> None:
    async with (
        run_node(small_config(tmp_path)) as node,
        sandq.connect(f"127.0.0.1:{node.client_port}") as client,
    ):
        assert (await client.admin.cluster())["exposed"] == []
        assert "sandq_insecure 0" in (await node.metrics.render())[0].decode().splitlines()
