"""Run the peer handshake on a connection."""

from __future__ import annotations

from typing import NoReturn

from sandq.broker.peers.handshake import HANDSHAKE_BYTES, Introduced, Refusal, Steps
from sandq.broker.peers.stream import LENGTH, PeerStream
from sandq.model.errors import ProtocolError


async def shake_hands(stream: PeerStream, steps: Steps) -> Introduced:
    """Run the handshake, and read no byte after it. Return the result of `steps`.

    Raise ConnectionLost. Raise Refusal if either side refuses. If this side refuses, first send the reason to the
    peer."""
    try:
        body = next(steps)
        while True:
            if body:
                await stream.send_body(body)
            body = steps.send(await stream.receive_body(HANDSHAKE_BYTES))
    except StopIteration as end:
        introduced: Introduced = end.value
    except Refusal as refusal:
        if refusal.by_peer:
            raise
        await refuse(stream, refusal)
    except ProtocolError as error:
        await refuse(stream, Refusal("malformed", error.message))
    if introduced.last:
        await stream.send_body(introduced.last)
    return introduced


async def refuse(stream: PeerStream, refusal: Refusal) -> NoReturn:
    """Send the refusal to the other side, and raise it."""
    body = refusal.frame()
    await stream.farewell(LENGTH.pack(len(body)) + body)
    raise refusal
