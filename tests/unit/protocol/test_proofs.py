"""Tests of proofs of a shared secret: as in docs/protocol.md, and valid for nothing else."""

from __future__ import annotations

import hashlib
import hmac
import re

import pytest

from sandq.protocol.proofs import derive, is_gateway_proof, prove_gateway
from tests.support.protocol_document import DOCUMENT, decode

SECRET = b"what nodes and gateways share"


def test_documented_proof_matches_the_greetings() -> None:
    assert re.search(rf"the\s+secret\s+`{SECRET.decode()}`", DOCUMENT)
    nonce = decode("hello-gateway")[4]["gateway"]
    _, _, _, node_id, uuid, _, _, challenge = decode("hello-gateway-reply")
    proof = decode("prove")[2]
    assert is_gateway_proof(proof, SECRET, nonce, challenge, node_id, uuid)
    # In the words of the document.
    parts = [nonce, challenge, node_id.encode(), uuid.encode()]
    over = b"gateway proof\0" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    assert proof == hmac.new(SECRET, over, hashlib.sha256).digest()
    assert derive(SECRET, b"gateway") == hmac.new(SECRET, b"sandq derived\0gateway", hashlib.sha256).digest()


@pytest.mark.parametrize("changed", range(5))
def test_proof_covers_every_part(changed: int) -> None:
    said = [SECRET, bytes(range(32)), bytes(range(32, 64)), "node1", "6f1c"]
    proof = prove_gateway(*said)  # type: ignore[arg-type]
    assert is_gateway_proof(proof, *said)  # type: ignore[arg-type]
    said[changed] = said[changed][:-1] + said[changed][:1]  # type: ignore[operator]
    assert not is_gateway_proof(proof, *said)  # type: ignore[arg-type]


def test_bytes_moved_between_parts_change_the_proof() -> None:
    assert prove_gateway(SECRET, b"", b"", "node1", "6f1c") != prove_gateway(SECRET, b"", b"", "node16", "f1c")
