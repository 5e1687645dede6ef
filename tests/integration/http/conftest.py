from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandq.node import Serving, run_node
from tests.support.nodes.gateway import ALONE, INSIDE, gateway
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.waiting import PATIENCE_S


@pytest.fixture
async def web_node(tmp_path: Path, hand: HandClock, request: pytest.FixtureRequest) -> AsyncIterator[Serving]:
    """A node in this process whose clock `hand` moves, and where its HTTP is served: in its loop, or, in tests with
    `by_both`, by a gateway."""
    at = "none" if getattr(request, "param", INSIDE) == ALONE else "127.0.0.1:0"
    config = small_config(tmp_path, LISTEN__HTTP=at, LIMITS__HTTP_BODY_BYTES="2MiB")
    async with run_node(config, clock=hand.guarded()) as serving:
        if serving.http is not None:
            yield serving
            return
        async with gateway(f"127.0.0.1:{serving.client_port}", config.limits) as address:
            yield dataclasses.replace(serving, http=address)


@pytest.fixture
async def web(web_node: Serving) -> AsyncIterator[Web]:
    assert web_node.http is not None
    host, port = web_node.http
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_S) as client:
        yield Web(client)


@pytest.fixture
async def keys(web: Web) -> Web:
    """It has a compacted topic "t" of three partitions."""
    await web.post("/topics", {"name": "t", "kind": "compacted", "partitions": 3}, 201)
    return web
