"""Tests of docs/client.md: its examples run, and its defaults are the defaults of the code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandq.client.client import Client
from sandq.client.consumer import credit, subscription, worker
from sandq.client.options import DEFAULTS
from sandq.model.ports import DEFAULT_SERVER
from sandq.model.times import duration_ms, format_duration
from tests.support.client.fake_server import FakeServer
from tests.support.documents import document

DOCUMENT = document("client")
EXAMPLES = re.findall(r"```python run\n(.*?)```", DOCUMENT, re.DOTALL)


def compiled(source: str) -> Callable[[Client], Awaitable[None]]:
    namespace: dict[str, Any] = {}
    exec(f"async def example(client):\n{textwrap.indent(source, '    ')}", namespace)
    example: Callable[[Client], Awaitable[None]] = namespace["example"]
    return example


def test_documented_examples_run(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        server.add_topic("orders")
        server.groups["billing"] = {}
        for example in EXAMPLES:
            await compiled(example)(client)

    assert len(EXAMPLES) == 17
    with_client(body)


@pytest.mark.parametrize(
    "default",
    [
        f"async with sandq.connect() as client:                        # {DEFAULT_SERVER}\n",
        f"({DEFAULTS.batch_messages:,} messages, {DEFAULTS.batch_bytes // 1024} KiB, or "
        f"{DEFAULTS.linger_s * 1000:g} ms after the first message)",
        f'`connect(..., delivery_timeout="{format_duration(round(DEFAULTS.delivery_timeout_s * 1000))}")`',
        f"the limit is {subscription.CREDIT} plus the number of",
        f"messages settled in the last {credit.KEEP_S * 1000:g} ms, up to {credit.MOST:,}",
        f"`grace` ({duration_ms(worker.GRACE) / 1000:g} s) to end",
    ],
)
def test_documented_default_is_right(default: str) -> None:
    assert " ".join(default.split()) in " ".join(DOCUMENT.split())
