"""docs/client.md: what it shows runs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

from sandq.client.client import Client
from tests.support.client.fake_server import FakeServer
from tests.support.paths import ROOT

DOCUMENT = (ROOT / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python run\n(.*?)```", DOCUMENT, re.DOTALL)


def compiled(source: str) -> Callable[[Client], Awaitable[None]]:
    namespace: dict[str, Any] = {}
    exec(f"async def example(client):\n{textwrap.indent(source, '    ')}", namespace)
    example: Callable[[Client], Awaitable[None]] = namespace["example"]
    return example


def test_the_examples_run(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        server.add_topic("orders")
        server.groups["billing"] = {}
        for example in EXAMPLES:
            await compiled(example)(client)

    assert len(EXAMPLES) == 12
    with_client(body)
