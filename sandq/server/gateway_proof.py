"""Verify that a client is a gateway, which may then name the caller of each request (docs/protocol.md, HELLO)."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sandq.broker.peers.secret import Secrets
from sandq.model.errors import Forbidden, InvalidRequest, ProtocolError
from sandq.protocol.proofs import NONCE_BYTES, derive, is_gateway_proof

SETTING: Final = "http.gateway_secret_file"
OPTION: Final = "gateway"
"""Key of HELLO's options: the gateway's nonce."""


class GatewayKeys:
    """The keys with which a gateway can prove itself to a node now.

    These keys are the secrets of `http.gateway_secret_file`, and keys derived from the cluster's secrets (for the HTTP
    processes of the other nodes). If there are neither, the only key is random, and known to this process alone."""

    def __init__(self, own: Secrets | None, cluster: Secrets | None) -> None:
        self._own = own
        self._cluster = cluster
        self._random = (secrets.token_bytes(NONCE_BYTES),)

    @property
    def current(self) -> tuple[bytes, ...]:
        """All keys that are accepted. The node's own HTTP process uses the first key."""
        own = self._own.current if self._own is not None else ()
        cluster = self._cluster.current if self._cluster is not None else ()
        return (*own, *(derive(secret, b"gateway") for secret in cluster)) or self._random

    @property
    def first(self) -> bytes:
        """The key with which the node's own HTTP process proves itself."""
        return self.current[0]

    def __repr__(self) -> str:
        """Return a text without the keys, so that logs do not contain them."""
        return "GatewayKeys()"


class GatewayProof:
    """The proof that one connection must give, and whether it has given the proof."""

    def __init__(
        self,
        keys: Sequence[bytes],
        node_id: str,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`keys`: a proof that was made with any of these keys is accepted."""
        self._keys = keys
        self._node_id = node_id
        self._random_bytes = random_bytes
        self._handshake = b"", b"", ""
        """Nonce, challenge and cluster UUID of this connection's HELLO and its reply; empty when no proof is
        expected."""
        self._proved_by: list[bytes] = []

    @property
    def is_given(self) -> bool:
        """Whether the connection has proved to be a gateway."""
        return bool(self._proved_by)

    def is_by(self, keys: Sequence[bytes]) -> bool:
        """Return whether the client made its proof with one of these keys."""
        return any([hmac.compare_digest(key, own) for key in keys for own in self._proved_by])

    def challenge(self, options: Mapping[str, Any], cluster_uuid: str) -> tuple[bytes, ...]:
        """Return the last fields of HELLO's reply: the challenge, or none if no gateway asks. Raise InvalidRequest."""
        nonce = options.get(OPTION)
        if nonce is None:
            return ()
        if type(nonce) is not bytes or len(nonce) != NONCE_BYTES:
            raise InvalidRequest(f"HELLO field 3 (options): {OPTION} must be {NONCE_BYTES} bytes")
        challenge = self._random_bytes(NONCE_BYTES)
        self._handshake = nonce, challenge, cluster_uuid
        return (challenge,)

    def check(self, proof: bytes) -> None:
        """Check a proof; each challenge is used once. Raise Forbidden if it is wrong, ProtocolError if none is
        expected."""
        (nonce, challenge, cluster_uuid), self._handshake = self._handshake, (b"", b"", "")
        if not challenge:
            raise ProtocolError(f"unexpected PROVE: it is sent once, after a HELLO with the option {OPTION!r}")
        signed = nonce, challenge, self._node_id, cluster_uuid
        # Always try all keys: otherwise the duration would reveal which key matches.
        fitting = [key for key in self._keys if is_gateway_proof(proof, key, *signed)]
        if not fitting:
            raise Forbidden(
                f"the proof does not match a gateway secret of node {self._node_id}: set the same {SETTING} on both; "
                "until then the requests count as the gateway's own"
            )
        self._proved_by = fitting

    def require(self) -> None:
        """Raise ProtocolError unless the connection has proved to be a gateway."""
        if not self.is_given:
            raise ProtocolError(
                "ON_BEHALF: only a gateway may send it, after it has proved itself (PROVE) with the secret of "
                f"{SETTING}; a client that asks for itself leaves it out"
            )
