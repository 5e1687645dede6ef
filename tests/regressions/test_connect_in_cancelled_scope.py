"""If `connect()` was entered in a cancelled scope, it never returned: its shielded background task could not end."""

from __future__ import annotations

import anyio
import pytest

import sandq


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_connect_in_cancelled_scope_ends(backend: str) -> None:
    async def connect() -> bool:
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with sandq.connect("127.0.0.1:1"):
                pass
        return scope.cancelled_caught

    assert anyio.run(connect, backend=backend)
