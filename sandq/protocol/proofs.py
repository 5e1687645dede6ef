"""Prove a shared secret: HMAC-SHA256 over what is proved and all that both sides have said before.

Whoever does not have the secret cannot make a proof, and one that was overheard is worth nothing elsewhere: both sides
have said something random that is never said again.
"""

from __future__ import annotations

import hmac
from typing import Final

NONCE_BYTES: Final = 32
"""Random, from each side."""
PROOF_BYTES: Final = 32
_GATEWAY: Final = b"gateway proof"


def said(*parts: bytes) -> bytes:
    """What was said, each part with its length before it: what is moved from one to the next is seen."""
    return b"".join([len(part).to_bytes(4, "big") + part for part in parts])


def prove(secret: bytes, what: bytes, said_before: bytes) -> bytes:
    """The proof, of `PROOF_BYTES`. `said_before`: as `said` makes it."""
    return hmac.digest(secret, what + b"\0" + said_before, "sha256")


def is_proof(proof: bytes, secret: bytes, what: bytes, said_before: bytes) -> bool:
    """Whether it is the proof; takes as long either way."""
    return hmac.compare_digest(proof, prove(secret, what, said_before))


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A secret for one purpose, which tells nothing of the one that it is made of."""
    return hmac.digest(secret, b"sandq derived\0" + purpose, "sha256")


def prove_gateway(secret: bytes, nonce: bytes, challenge: bytes, node_id: str, cluster_uuid: str) -> bytes:
    """What a gateway proves itself to a node with (PROVE). `nonce`: the gateway's; the rest as HELLO's reply has it."""
    return prove(secret, _GATEWAY, _greetings(nonce, challenge, node_id, cluster_uuid))


def is_gateway_proof(
    proof: bytes, secret: bytes, nonce: bytes, challenge: bytes, node_id: str, cluster_uuid: str
) -> bool:
    """Whether it is that of `prove_gateway`."""
    return is_proof(proof, secret, _GATEWAY, _greetings(nonce, challenge, node_id, cluster_uuid))


def _greetings(nonce: bytes, challenge: bytes, node_id: str, cluster_uuid: str) -> bytes:
    return said(nonce, challenge, node_id.encode(), cluster_uuid.encode())
