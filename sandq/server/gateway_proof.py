"""Believe a gateway that proves itself: from then on it says for whom it asks (docs/protocol.md, HELLO)."""

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
"""Of HELLO: the gateway's nonce."""


class GatewayKeys:
    """What proves to a node that a client is a gateway, as it is now: what `http.gateway_secret_file` holds, what is
    made of the cluster's secrets (for the HTTP processes of the other nodes), and without both of these something
    random, that nobody else knows."""

    def __init__(self, own: Secrets | None, cluster: Secrets | None) -> None:
        self._own = own
        self._cluster = cluster
        self._random = (secrets.token_bytes(NONCE_BYTES),)

    @property
    def current(self) -> tuple[bytes, ...]:
        """Each of them is taken, and the first is for the node's own."""
        own = self._own.current if self._own is not None else ()
        cluster = self._cluster.current if self._cluster is not None else ()
        return (*own, *(derive(secret, b"gateway") for secret in cluster)) or self._random

    @property
    def first(self) -> bytes:
        """What the node's own HTTP proves itself with."""
        return self.current[0]

    def __repr__(self) -> str:
        return "GatewayKeys()"


class GatewayProof:
    """What one connection has to prove, and whether it has."""

    def __init__(
        self,
        keys: Sequence[bytes],
        node_id: str,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`keys`: any of them proves it."""
        self._keys = keys
        self._node_id = node_id
        self._random_bytes = random_bytes
        self._said = b"", b"", ""
        """The nonce, the challenge and the cluster's UUID, as this connection's HELLO and its reply had them."""
        self._proved_by: list[bytes] = []

    @property
    def is_given(self) -> bool:
        """Whether it has proved it."""
        return bool(self._proved_by)

    def is_by(self, keys: Sequence[bytes]) -> bool:
        """Whether what was proved is still proved by one of these keys."""
        return any([hmac.compare_digest(key, own) for key in keys for own in self._proved_by])

    def challenge(self, options: Mapping[str, Any], cluster_uuid: str) -> tuple[bytes, ...]:
        """What HELLO's reply ends with: nothing, unless its options ask for it. Raises InvalidRequest."""
        nonce = options.get(OPTION)
        if nonce is None:
            return ()
        if type(nonce) is not bytes or len(nonce) != NONCE_BYTES:
            raise InvalidRequest(f"HELLO field 3 (options): {OPTION} must be {NONCE_BYTES} bytes")
        challenge = self._random_bytes(NONCE_BYTES)
        self._said = nonce, challenge, cluster_uuid
        return (challenge,)

    def check(self, proof: bytes) -> None:
        """Take a proof, once. Raises Forbidden: it is none; ProtocolError: none is expected."""
        (nonce, challenge, cluster_uuid), self._said = self._said, (b"", b"", "")
        if not challenge:
            raise ProtocolError(f"PROVE comes once, behind a HELLO with the option {OPTION!r}")
        said = nonce, challenge, self._node_id, cluster_uuid
        # All are tried, so that nobody learns how many there are.
        fitting = [key for key in self._keys if is_gateway_proof(proof, key, *said)]
        if not fitting:
            raise Forbidden(
                f"this is no proof of a gateway of node {self._node_id}: give both the same {SETTING}; "
                "until then its requests count as its own"
            )
        self._proved_by = fitting

    def require(self) -> None:
        """Raise ProtocolError unless it was proved."""
        if not self.is_given:
            raise ProtocolError(
                "ON_BEHALF: who asks on behalf of others must prove first that it is a gateway (PROVE), with the "
                f"secret of {SETTING}; a client asks for itself and leaves the frame out"
            )
