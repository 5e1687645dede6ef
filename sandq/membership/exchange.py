"""Streams between members: one request and one reply, then the stream is closed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import trio

from sandq.broker.peers.peer_slots import Slot
from sandq.gossip.messages import Ack, Err, Message, Ping
from sandq.gossip.streams import PushPull, Streams
from sandq.membership.intake import Intake
from sandq.model.config_schema import Address
from sandq.model.errors import ConnectionLost, ProtocolError

_RECEIVE_BYTES = 64 << 10


async def ask(
    streams: Streams, address: Address, request: PushPull | Ping, limit_s: float, intake: Intake, slot: Slot
) -> PushPull | Ack:
    """Send a request and return the reply. Raises ConnectionLost; ProtocolError if the reply does not fit."""
    with _within(limit_s, address):
        async with _connected(address) as stream:
            await stream.send_all(await intake.do(slot, streams.sealing(request)))
            answer = await receive(streams, stream, intake, slot)
    if isinstance(answer, Err):
        raise ProtocolError(f"{address} answered: {answer.error:.200}")
    if isinstance(request, PushPull) and isinstance(answer, PushPull):
        return answer
    if isinstance(request, Ping) and isinstance(answer, Ack) and answer.seq == request.seq:
        return answer
    raise ProtocolError(f"{address} answered {type(request).__name__} with {type(answer).__name__}")


async def receive(streams: Streams, stream: trio.SocketStream, intake: Intake, slot: Slot) -> PushPull | Message:
    """Receive the one message of the other direction. Raises ConnectionLost, ProtocolError."""
    reader = streams.reader()
    while True:
        try:
            data = await stream.receive_some(_RECEIVE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ConnectionLost("the gossip stream broke") from None
        if not data:
            raise ConnectionLost("the gossip stream ended within a message; do both sides use the same gossip keys?")
        intake.hold(slot, reader.held_bytes + len(data))
        message = await intake.do(slot, reader.feeding(bytes(data)))
        if message is not None:
            return message


@contextlib.asynccontextmanager
async def _connected(address: Address) -> AsyncIterator[trio.SocketStream]:
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid name
        raise ConnectionLost(f"{address} cannot be reached: {_reason(error)}") from None
    try:
        yield stream
    except trio.BrokenResourceError:
        raise ConnectionLost(f"{address} closed the gossip stream") from None
    finally:
        # Do not wait for a peer that does not read.
        await trio.aclose_forcefully(stream)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return str(error)
    cause = error.__cause__
    if isinstance(cause, OSError):
        error = cause
    elif isinstance(cause, BaseExceptionGroup):
        error = next((e for e in cause.exceptions if isinstance(e, OSError)), error)
    return error.strerror or str(error)


@contextlib.contextmanager
def _within(limit_s: float, address: Address) -> Iterator[None]:
    try:
        with trio.fail_after(limit_s):
            yield
    except trio.TooSlowError:
        raise ConnectionLost(f"{address} did not answer within {limit_s:g} s") from None
