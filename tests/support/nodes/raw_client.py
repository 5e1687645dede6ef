"""Provide a client that sends exactly the bytes that a test chooses: frames, parts of frames, garbage."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import trio

from sandq.model.batch import Column, encode
from sandq.protocol.frames import Type

Frame = list[Any]


class RawClient:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.pushed: list[Frame] = []
        self._buffer = b""
        self._request_id = 0

    @classmethod
    async def connect(cls, port: int, *, hello: bool = True) -> RawClient:
        client = cls(await trio.open_tcp_stream("127.0.0.1", port))
        try:
            if hello:
                assert (await client.call(Type.HELLO, 2, "raw", {}))[0] == 0
        except BaseException:  # no caller has the client yet, so close its stream here
            await trio.aclose_forcefully(client.stream)
            raise
        return client

    async def send(self, *fields: Any) -> None:
        body = msgpack.packb(fields)
        await self.send_bytes(struct.pack(">I", len(body)) + body)

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def call(self, kind: int, *fields: Any) -> Frame:
        """Send one request and return the reply or the error. Keep frames that the node pushes before it."""
        self._request_id += 1
        await self.send(kind, self._request_id, *fields)
        while True:
            frame = await self.receive()
            if frame[0] != Type.DELIVER:
                assert frame[1] in (self._request_id, 0)
                return frame
            self.pushed.append(frame)

    async def receive(self) -> Frame:
        while True:
            if len(self._buffer) >= 4:
                (length,) = struct.unpack_from(">I", self._buffer)
                if len(self._buffer) >= 4 + length:
                    body, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
                    frame: Frame = msgpack.unpackb(body, raw=False)
                    return frame
            data = await self.stream.receive_some(1 << 16)
            if not data:
                raise EOFError
            self._buffer += data

    async def rest(self) -> bytes:
        """Return all bytes that the server sends until it closes the connection."""
        while data := await self.stream.receive_some(1 << 16):
            self._buffer += data
        return self._buffer

    async def push(self) -> Frame:
        return self.pushed.pop(0) if self.pushed else await self.receive()

    # -- short methods --------------------------------------------------------------------------------------------

    async def create(self, topic: str = "t", **settings: Any) -> Frame:
        return await self.call(Type.TOPIC_CREATE, topic, "timer", 1, 1, settings)

    async def produce(self, *values: bytes, topic: str = "t", partition: int = 0, **columns: Any) -> Frame:
        named = {Column[name.upper()]: cells for name, cells in columns.items()}
        return await self.produce_batch(encode({Column.VALUE: list(values), **named}), topic, partition)

    async def produce_batch(self, batch: bytes, topic: str = "t", partition: int = 0) -> Frame:
        return await self.call(Type.PRODUCE, topic, partition, 0, 0, 0, 0, batch)

    async def subscribe(self, *, credit: int = 10, number: int = 1, group: str = "g", consumer: str = "c") -> Frame:
        return await self.call(Type.SUBSCRIBE, number, "t", group, consumer, credit, None, "earliest", [])

    async def ack(self, pushed: Frame) -> Frame:
        return await self.call(Type.ACK, pushed[2], pushed[3], [[pushed[4], None]])


def values_of(pushed: Frame) -> list[bytes | None]:
    from sandq.model.batch import Batch

    values = Batch.parse(pushed[12]).values()
    if pushed[10] is None:
        return values
    return [values[first + n] for first, count in pushed[10] for n in range(count)]
