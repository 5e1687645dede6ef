"""Provide a fake Serf agent with an RPC on a real socket. A test can replace its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgpack
import trio

from sandq.model.config_types import Address
from tests.support.ports import free_port

WITH_BODY = ("handshake", "auth", "tags", "join", "stream")
Spoiled = bytes | Callable[[int], bytes] | None
"""Replacement of an answer: bytes; a function from the request's Seq to bytes; or None for no answer."""


def pack(*values: object) -> bytes:
    return b"".join(msgpack.packb(value, use_bin_type=False) for value in values)


def header(seq: int, error: str = "") -> bytes:
    return pack({"Seq": seq, "Error": error})


def listed(name: str, status: str = "alive", port: int = 7946, **tags: str) -> dict[str, Any]:
    return {"Name": name, "Addr": b"\x7f\0\0\x01", "Port": port, "Tags": tags, "Status": status, "ProtocolCur": 5}


class FakeAgent:
    """A fake agent.

    `spoiled`: replacement of the answer, by command. `requests`: every request, as (command, body). `full`: the agent
    accepts no more tags. `seeds`: the addresses at which a member answers to `join`."""

    def __init__(self, name: str = "agent1", auth_key: str | None = None) -> None:
        self.name = name
        self.auth_key = auth_key
        self.address = Address("127.0.0.1", free_port())
        self.members = {name: listed(name)}
        self.seeds: set[str] = set()
        self.full = False
        self.spoiled: dict[str, Spoiled] = {}
        self.requests: list[tuple[str, Any]] = []
        self.accepted = 0
        self._scope: trio.CancelScope | None = None
        self._sending = trio.Lock()
        self._streams: dict[trio.SocketStream, int] = {}

    @property
    def tags(self) -> dict[str, str]:
        tags: dict[str, str] = self.members[self.name]["Tags"]
        return tags

    def count(self, command: str) -> int:
        return sum(name == command for name, _ in self.requests)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. May be called again after `stop`."""
        listeners = await trio.open_tcp_listeners(self.address.port, host=self.address.host)
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(trio.serve_listeners, self._serve, listeners))
                task_status.started()

    def stop(self) -> None:
        assert self._scope is not None
        self._scope.cancel()

    async def happens(self, *, is_streamed: bool = True, **changed: dict[str, Any] | None) -> None:
        """Change members; None removes a member. `is_streamed`: notify the streams."""
        for name, member in changed.items():
            if member is None:
                del self.members[name]
            else:
                self.members[name] = member
        for stream, seq in list(self._streams.items()) if is_streamed else []:
            await self._send(stream, header(seq) + pack({"Event": "member-update", "Members": list(changed)}))

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.accepted += 1
        unpacker = msgpack.Unpacker(raw=False)
        let_in = self.auth_key is None
        try:
            while (request := await self._next(stream, unpacker)) is not None:
                command, seq = request["Command"], request["Seq"]
                if not let_in and command not in ("handshake", "auth"):
                    # A body stays unread, so the agent parses it as the next request.
                    await self._send(stream, header(seq, "Authentication required"))
                    continue
                body = await self._next(stream, unpacker) if command in WITH_BODY else None
                self.requests.append((command, body))
                if command in self.spoiled:
                    await self._spoil(stream, seq, self.spoiled[command])
                elif command == "auth":
                    let_in = body["AuthKey"] == self.auth_key
                    await self._send(stream, header(seq, "" if let_in else "Invalid authentication token"))
                else:
                    answer = getattr(self, f"_{command}")(seq, body)
                    async with self._sending:
                        if command == "stream":
                            # The first event of the stream waits for the lock, so it follows this answer.
                            self._streams[stream] = seq
                        await stream.send_all(answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._streams.pop(stream, None)

    async def _next(self, stream: trio.SocketStream, unpacker: msgpack.Unpacker) -> Any:
        while True:
            for value in unpacker:
                return value
            data = await stream.receive_some()
            if not data:
                return None
            unpacker.feed(data)

    async def _spoil(self, stream: trio.SocketStream, seq: int, spoiled: Spoiled) -> None:
        if spoiled is None:
            await trio.sleep_forever()
        elif spoiled == b"":
            await stream.aclose()
        else:
            await self._send(stream, spoiled(seq) if callable(spoiled) else spoiled)

    async def _send(self, stream: trio.SocketStream, data: bytes) -> None:
        async with self._sending:
            await stream.send_all(data)

    # -- answers --------------------------------------------------------------------------------------------------

    def _handshake(self, seq: int, body: Any) -> bytes:
        return header(seq, "" if body == {"Version": 1} else "Unsupported IPC version")

    def _stats(self, seq: int, body: Any) -> bytes:
        return header(seq) + pack({"agent": {"name": self.name}, "serf": {"members": str(len(self.members))}})

    def _members(self, seq: int, body: Any) -> bytes:
        return header(seq) + pack({"Members": list(self.members.values())})

    def _tags(self, seq: int, body: Any) -> bytes:
        if self.full:
            return header(seq, "Encoded length of tags exceeds limit of 512 bytes")
        kept = {name: value for name, value in self.tags.items() if name not in body["DeleteTags"]}
        self.members[self.name] = listed(self.name, **(kept | body["Tags"]))
        return header(seq)

    def _join(self, seq: int, body: Any) -> bytes:
        (seed,) = body["Existing"]
        if seed not in self.seeds:
            return header(seq, f"1 error occurred:\n\t* {seed} refused\n\n") + pack({"Num": 0})
        self.members["joined"] = listed("joined")
        return header(seq) + pack({"Num": 1})

    def _stream(self, seq: int, body: Any) -> bytes:
        return header(seq)


@asynccontextmanager
async def running(agent: FakeAgent) -> AsyncIterator[trio.Nursery]:
    """Run the agent during the block; the nursery is for the test."""
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.run)
        yield nursery
        nursery.cancel_scope.cancel()
