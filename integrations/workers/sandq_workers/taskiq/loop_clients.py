"""One client for each address and event loop, which everything that uses the address in this loop shares.

A client is opened and closed by a task of its own, because `sandq.connect` must be left by the task that entered it,
and Taskiq calls `startup` and `shutdown` in any task.
"""

from __future__ import annotations

import asyncio
from typing import Final

import sandq
from sandq_workers.urls import Address

_CLIENT_NAME: Final = "sandq-workers"


class _Shared:
    """A client, its users, and the task that keeps it open."""

    def __init__(self, address: Address) -> None:
        self.users = 0
        self.client: asyncio.Future[sandq.Client] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self.task = asyncio.create_task(self._run(address), name="sandq-client")

    async def _run(self, address: Address) -> None:
        try:
            async with address.open(_CLIENT_NAME) as client:
                self.client.set_result(client)
                await self._ending.wait()
        except Exception as error:
            if self.client.done():
                raise
            self.client.set_exception(error)
            self.client.exception()  # no warning if no caller waits any more
        finally:
            if not self.client.done():
                self.client.cancel()

    async def close(self) -> None:
        """Close the client, and wait until it is closed."""
        self._ending.set()
        await asyncio.wait([self.task])


_shared: dict[tuple[Address, asyncio.AbstractEventLoop], _Shared] = {}


class LoopClients:
    """The clients of one user of an address, one for each event loop that it has used."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._used: dict[asyncio.AbstractEventLoop, _Shared] = {}

    async def get(self) -> sandq.Client:
        """Return the client for the running event loop; connect if there is none. Raises the errors of connecting."""
        loop = asyncio.get_running_loop()
        shared = self._used.get(loop)
        if shared is None or shared.task.done():
            for old in [key for key, one in _shared.items() if key[1].is_closed() or one.task.done()]:
                del _shared[old]
            self._used = {key: one for key, one in self._used.items() if not key.is_closed()}
            shared = _shared.get((self.address, loop))
            if shared is None:
                shared = _shared[self.address, loop] = _Shared(self.address)
            self._used[loop] = shared
            shared.users += 1
        return await asyncio.shield(shared.client)

    async def release(self) -> None:
        """Close the client for the running event loop unless something else uses it."""
        loop = asyncio.get_running_loop()
        shared = self._used.pop(loop, None)
        if shared is None:
            return
        shared.users -= 1
        if not shared.users:
            if _shared.get((self.address, loop)) is shared:
                del _shared[self.address, loop]
            await shared.close()
