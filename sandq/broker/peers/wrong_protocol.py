"""Reply to clients that connect to the peer port by mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandq.broker.peers.handshake import HANDSHAKE_BYTES
from sandq.model.errors import SandqError, WrongPort
from sandq.protocol.frames import FrameReader, Type, encode_error

HEAD_BYTES: Final = 6
"""Number of first bytes that identify the protocol of a connection.

The first frame of a node, and the first request of a client, have at least this number of bytes."""
_FIXARRAYS = range(0x90, 0xA0)


def answer(head: bytes, addresses: Mapping[str, str]) -> bytes:
    """Return the reply to a client of another protocol. If the other side may be a node, return empty bytes.

    `head`: first bytes of the connection. `addresses`: addresses of this node by protocol, as "client" ->
    "host:port"."""
    text = "This is sandq's peer port, where the nodes of a cluster communicate." + "".join(
        f" {what} belongs to {addresses[name]} on this node."
        for name, what in (("client", "The binary protocol of sandctl and the client library"), ("http", "HTTP"))
        if name in addresses
    )
    # The first request of a client is HELLO, an array that begins with 1. The first frame of a node begins with a text.
    if head[:2] == b"\0\0" and head[4] in _FIXARRAYS and head[5] == Type.HELLO:
        return encode_error(0, WrongPort(text))
    try:
        FrameReader(HANDSHAKE_BYTES).feed(head)
    except WrongPort as error:
        return _http(text) if error.details["speaks"] == "http" else f"{text}\n".encode()
    except SandqError:
        pass
    return b""


def _http(text: str) -> bytes:
    """Return an HTTP response with status 400 and this text."""
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text) + 1}\r\n"
    return f"{head}Connection: close\r\n\r\n{text}\n".encode()
