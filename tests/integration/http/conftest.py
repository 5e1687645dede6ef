from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandq.node.running import Serving
from tests.support.http_client import NO_TLS
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.waiting import PATIENCE_S


@pytest.fixture
async def web_node(tmp_path: Path, hand: HandClock) -> AsyncIterator[Serving]:
    """A node in this process whose clock is moved by `hand`."""
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", LIMITS__HTTP_BODY_BYTES="2MiB")
    async with run_node(config, clock=hand.guarded()) as serving:
        yield serving


@pytest.fixture
async def web(web_node: Serving) -> AsyncIterator[Web]:
    assert web_node.http is not None
    host, port = web_node.http
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{host}:{port}", timeout=PATIENCE_S) as client:
        yield Web(client)


@pytest.fixture
async def keys(web: Web) -> Web:
    """HTTP client of a node with a compacted topic "t" of three partitions."""
    await web.post("/topics", {"name": "t", "kind": "compacted", "partitions": 3}, 201)
    return web
