"""Prove the knowledge of a shared secret: HMAC-SHA256 over a purpose and everything that both sides have sent before.

A proof cannot be made without the secret. An intercepted proof is useless on another connection, because each side has
sent random bytes that it never sends again.
"""

from __future__ import annotations

import hmac
from typing import Final

NONCE_BYTES: Final = 32
"""Number of random bytes that each side sends."""
PROOF_BYTES: Final = 32
_GATEWAY: Final = b"gateway proof"


def said(*parts: bytes) -> bytes:
    """Return the parts that were sent, each preceded by its length, so that moving bytes from one part to the next
    changes the result."""
    return b"".join([len(part).to_bytes(4, "big") + part for part in parts])


def prove(secret: bytes, what: bytes, said_before: bytes) -> bytes:
    """Return the proof, of `PROOF_BYTES`. `what`: the purpose of the proof. `said_before`: the result of `said`."""
    return hmac.digest(secret, what + b"\0" + said_before, "sha256")


def is_proof(proof: bytes, secret: bytes, what: bytes, said_before: bytes) -> bool:
    """Return whether the proof is correct. Takes constant time."""
    return hmac.compare_digest(proof, prove(secret, what, said_before))


def derive(secret: bytes, purpose: bytes) -> bytes:
    """Derive a secret for one purpose. The result reveals nothing about `secret`."""
    return hmac.digest(secret, b"sandq derived\0" + purpose, "sha256")


def prove_gateway(secret: bytes, nonce: bytes, challenge: bytes, node_id: str, cluster_uuid: str) -> bytes:
    """Return the proof that a gateway sends to a node (PROVE). `nonce`: the nonce of the gateway. All other arguments
    are from HELLO's reply."""
    return prove(secret, _GATEWAY, _greetings(nonce, challenge, node_id, cluster_uuid))


def is_gateway_proof(
    proof: bytes, secret: bytes, nonce: bytes, challenge: bytes, node_id: str, cluster_uuid: str
) -> bool:
    """Return whether the proof is equal to the result of `prove_gateway`."""
    return is_proof(proof, secret, _GATEWAY, _greetings(nonce, challenge, node_id, cluster_uuid))


def _greetings(nonce: bytes, challenge: bytes, node_id: str, cluster_uuid: str) -> bytes:
    return said(nonce, challenge, node_id.encode(), cluster_uuid.encode())
