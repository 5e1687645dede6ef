"""The handshake of two nodes, without I/O. The input and the output are bodies of frames.

    dialer    HELLO       [magic, version, "hello", cluster, purpose, to, nonce, node, store, cluster UUID, addresses,
                           zone, weight, lowest feature level, highest feature level, cluster's feature level, ...]
    acceptor  CHALLENGE   [magic, version, "challenge", ...]         the same fields; `to` is the dialer
    dialer    PROOF       ["proof", proof]
    acceptor  WELCOME     ["welcome", known, cluster UUID, proof]
    dialer    WELCOME     ["welcome", known, cluster UUID, proof]
    either    REFUSED     ["refused", reason, message]               instead of its next frame, and then it closes

`known` tells whether the sender of the WELCOME has met the other node before.

A proof is an HMAC-SHA256 with the secret of the cluster. A proof covers the role of the side that proves, all bytes of
HELLO and CHALLENGE, and the fields of its own frame. So a proof is invalid if a byte is changed, or if the proof is
replayed on another connection or by the other side. The dialer proves first. So an unknown caller gets no proof from
which it could guess the secret.

`dial` and `accept` are generators. The caller sends each body that the generator yields (empty: nothing). The caller
passes the next received body to the generator's `send`. The generator returns when both sides have proved the secret,
or raises `Refusal`. If a later version adds fields at the end of HELLO or CHALLENGE, they are ignored. docs/protocol.md
describes the bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from sandq.model.config_schema import WEIGHT_MOST
from sandq.model.errors import Conflict, InvalidName, ProtocolError
from sandq.model.features import FIRST_LEVEL, KNOWN, Levels
from sandq.model.names import check_name
from sandq.protocol.proofs import NONCE_BYTES, is_proof, prove, said
from sandq.storage.known_peers import KnownPeers

MAGIC: Final = "sandq-peer"
VERSION: Final = 3
HANDSHAKE_BYTES: Final = 4096
"""Maximum size of the body of a handshake frame, in bytes."""
UUID_CHARS: Final = 64
VERSION_CHARS: Final = 64
ADDRESSES_MOST: Final = 8
MESSAGE_CHARS: Final = 500
"""Maximum length of a refusal's message, in characters. A longer message is cut."""

LINK: Final = "link"
"""Purpose of the permanent connection of two nodes. The node with the smaller id dials."""
STREAM: Final = "stream"
"""Purpose of an extra connection for one large transfer. Either node may dial."""

REMEDIES: Final = {
    "malformed": "check that the peer's address is that of a sandq peer port (listen.peer), of this release",
    "version": "run the same release on all nodes",
    "cluster": "give all nodes the same cluster.name, or check the addresses in cluster.peers or cluster.seeds",
    "node": "check node.id and cluster.peers of both nodes",
    "purpose": "check that both nodes have different ids, the same in every cluster.peers",
    "secret": "give cluster.secret_file the same content on all nodes",
    "tls": "see tls.peer of both nodes: off and accept first, then send, then require, on all; and their certificates",
    "certificate": "give each node a certificate with its node.id among the DNS names: sandq certs node",
    "place": "set cluster.secret_file on all nodes, or use only loopback addresses",
    "cluster-uuid": "one of the two has the data of another cluster: check node.data_dir",
    "store": "restore its data directory, or remove the node and add it again",
    "level": "start a version on that node that supports the feature level of the cluster (docs/upgrading.md)",
    "removed": "stop that node; to add it again, start it with an empty data directory",
}
"""Remedy for each reason of a refusal."""


class Refusal(ProtocolError):
    """One side of a handshake refuses the other side.

    A refusal by this node, before the peer has proved the secret, contains only values that the peer sent. `by_peer`:
    the peer refused this node. `claimed_id`: node id that the dialer claimed; None if this node dialled, or does not
    know it yet.
    """

    def __init__(self, reason: str, message: str, *, by_peer: bool = False) -> None:
        super().__init__(message, reason=reason)
        self.reason = reason
        self.by_peer = by_peer
        self.claimed_id: str | None = None

    def frame(self) -> bytes:
        """Return the body of REFUSED."""
        return _pack("refused", self.reason, self.message[:MESSAGE_CHARS])


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """The identity that a node states in the handshake.

    `cluster_uuid`: None before the node has formed or joined a cluster. `addresses`: addresses of the node by protocol,
    as "client" -> "host:port". `zone`: location of the node. `weight`: its share of the partitions relative to other
    nodes. `levels`: feature levels that its version supports. `feature_level`: feature level of its cluster; None if
    unknown. `version`: its sandq version; None if unknown.
    """

    node_id: str
    store_uuid: str
    cluster_uuid: str | None
    addresses: dict[str, str]
    zone: str = "default"
    weight: int = 1
    levels: Levels = KNOWN
    feature_level: int | None = None
    version: str | None = None


class Peer(NamedTuple):
    """The other node of a connection. `known`: the other node has met this node before, with the present store of this
    node."""

    identity: PeerIdentity
    known: bool


class Introduced(NamedTuple):
    """The result of a handshake. `last`: a body that the caller must still send; empty if there is none."""

    peer: Peer
    purpose: str
    last: bytes = b""
    secret: bytes = b""
    """The secret that both sides have proved."""

    def __repr__(self) -> str:
        return f"Introduced({self.peer!r}, {self.purpose!r})"


@dataclass(frozen=True, slots=True)
class Terms:
    """The requirements of this node for its peers, and the identity and secrets that it uses.

    `peers`: node ids that may connect. `secrets()`: return the current secrets. A proof with any of these secrets is
    accepted; the dialer uses the first secret. An empty secret means that no secret is configured.
    """

    cluster: str
    secrets: Callable[[], Sequence[bytes]]
    identity: Callable[[], PeerIdentity]
    peers: Container[str]
    known: KnownPeers


Steps = Generator[bytes, bytes, Introduced]


def dial(terms: Terms, nonce: bytes, to: str, purpose: str) -> Steps:
    """Run the side that has dialled the node `to`. `nonce`: `NONCE_BYTES` random bytes, new for each handshake."""
    own = terms.identity()
    hello = _Opening("hello", terms.cluster, purpose, to, nonce, own).encode()
    challenge = yield hello
    theirs = _Opening.parse(challenge, "challenge")
    _check_addressee(terms, own, theirs)
    if theirs.identity.node_id != to or theirs.purpose != purpose:
        raise Refusal("node", f"{theirs.identity.node_id} is not the node that was expected here")
    proofs = _Proofs(terms.secrets()[:1], hello, challenge)
    answer = yield proofs.proof()
    known, cluster_uuid = proofs.check_welcome("acceptor", answer)
    peer, was_known = _met(terms, theirs, known, cluster_uuid)
    return Introduced(peer, purpose, proofs.welcome("dialer", was_known, terms.identity().cluster_uuid), proofs.secret)


def accept(terms: Terms, nonce: bytes, is_certified: Callable[[str], bool] | None = None) -> Steps:
    """Run the side that has accepted the connection. `nonce`: see `dial`.

    `is_certified(node_id)`: return whether the peer's TLS certificate belongs to the node `node_id`. None if the
    connection has no certificate."""
    hello = yield b""
    theirs = _Opening.parse(hello, "hello")
    try:
        return (yield from _accept(terms, nonce, hello, theirs, is_certified))
    except Refusal as refusal:
        refusal.claimed_id = theirs.identity.node_id
        raise


def _accept(
    terms: Terms, nonce: bytes, hello: bytes, theirs: _Opening, is_certified: Callable[[str], bool] | None
) -> Steps:
    """Do the steps of `accept` after HELLO was parsed."""
    own, peer_id = terms.identity(), theirs.identity.node_id
    if is_certified is not None and not is_certified(peer_id):
        raise Refusal("certificate", f"the certificate that was shown does not belong to {peer_id}")
    _check_addressee(terms, own, theirs)
    if theirs.purpose == LINK and peer_id > own.node_id:
        raise Refusal("purpose", f"the node with the smaller id dials, and {peer_id} has the greater one")
    challenge = _Opening("challenge", terms.cluster, theirs.purpose, peer_id, nonce, own).encode()
    proofs = _Proofs(terms.secrets(), hello, challenge)
    proofs.check_proof((yield challenge))
    _, was_known = _met(terms, theirs, False, theirs.identity.cluster_uuid)
    answer = yield proofs.welcome("acceptor", was_known, terms.identity().cluster_uuid)
    known, cluster_uuid = proofs.check_welcome("dialer", answer)
    peer, _ = _met(terms, theirs, known, cluster_uuid)
    return Introduced(peer, theirs.purpose, secret=proofs.secret)


@dataclass(frozen=True, slots=True)
class _Opening:
    """A HELLO or CHALLENGE. `to`: node id of the intended receiver."""

    kind: str
    cluster: str
    purpose: str
    to: str
    nonce: bytes
    identity: PeerIdentity

    def encode(self) -> bytes:
        own = self.identity
        fields = (self.kind, self.cluster, self.purpose, self.to, self.nonce)
        names = (own.node_id, own.store_uuid, own.cluster_uuid, own.addresses, own.zone, own.weight)
        return _pack(MAGIC, VERSION, *fields, *names, *own.levels, own.feature_level, own.version)

    @classmethod
    def parse(cls, body: bytes, kind: str) -> _Opening:
        """Parse the body of a HELLO or CHALLENGE, as `kind` says. Raise Refusal if the body is invalid."""
        fields = _unpack(body)
        if len(fields) < 2 or fields[0] != MAGIC:
            raise Refusal("malformed", "this is not the greeting of a sandq node")
        if type(fields[1]) is not int or fields[1] != VERSION:
            raise Refusal("version", f"version {fields[1]!r:.20} of the peer protocol is not supported here")
        types = (
            str,
            int,
            str,
            str,
            str,
            str,
            bytes,
            str,
            str,
            (str, type(None)),
            dict,
            str,
            int,
            int,
            int,
            (int, type(None)),
            (str, type(None)),
        )
        fields = fields[: len(types)]
        _check_types(fields, types, kind)
        if fields[2] != kind or fields[4] not in (LINK, STREAM) or len(fields[6]) != NONCE_BYTES:
            raise Refusal("malformed", f"this is no {kind.upper()}")
        cluster, purpose, to, nonce, node, store, uuid, addresses, zone, weight, lowest, highest, level, version = (
            fields[3:]
        )
        peer = PeerIdentity(
            node_id=node,
            store_uuid=store,
            cluster_uuid=uuid,
            addresses=addresses,
            zone=zone,
            weight=weight,
            levels=Levels(lowest, highest),
            feature_level=level,
            version=version,
        )
        return cls(kind, cluster, purpose, to, nonce, _checked(peer))


def _checked(identity: PeerIdentity) -> PeerIdentity:
    """Return the identity. Raise Refusal if one of its fields is invalid."""
    try:
        check_name("node", identity.node_id)
        check_name("zone", identity.zone)
    except InvalidName as error:
        raise Refusal("malformed", error.message) from None
    texts = [text for pair in identity.addresses.items() for text in pair]
    if len(texts) > 2 * ADDRESSES_MOST or not all(isinstance(text, str) for text in texts):
        raise Refusal("malformed", f"at most {ADDRESSES_MOST} addresses are expected, as text")
    if not 1 <= identity.weight <= WEIGHT_MOST:
        raise Refusal("malformed", f"a weight is 1 to {WEIGHT_MOST}")
    (lowest, highest), level = identity.levels, identity.feature_level
    if not FIRST_LEVEL <= lowest <= highest or (level is not None and level < FIRST_LEVEL):
        raise Refusal("malformed", "the feature levels are invalid")
    if identity.version is not None and not 0 < len(identity.version) <= VERSION_CHARS:
        raise Refusal("malformed", "a version is empty or too long")
    _check_uuid(identity.store_uuid)
    _check_uuid(identity.cluster_uuid)
    return identity


def _check_uuid(uuid: str | None) -> None:
    """Raise Refusal if a UUID is empty or too long."""
    if uuid is not None and not 0 < len(uuid) <= UUID_CHARS:
        raise Refusal("malformed", "a UUID is empty or too long")


def _check_addressee(terms: Terms, own: PeerIdentity, theirs: _Opening) -> None:
    """Check the names in HELLO or CHALLENGE.

    Raise Refusal if the other node names another cluster, has the id of this node, is not among the peers, or meant to
    reach another node."""
    node_id = theirs.identity.node_id
    if theirs.cluster != terms.cluster:
        raise Refusal("cluster", f"this is not a node of the cluster {theirs.cluster!r:.300}")
    if node_id == own.node_id:
        raise Refusal("node", f"this node is {node_id} itself")
    if node_id not in terms.peers:
        raise Refusal("node", f"{node_id} is not among the peers of this node")
    if theirs.to != own.node_id:
        raise Refusal("node", f"this node is not {theirs.to!r:.300}")


def _met(terms: Terms, theirs: _Opening, known: bool, cluster_uuid: str | None) -> tuple[Peer, bool]:
    """Check the other node after its proof. Return the node, and whether this node has met it before. Raise Refusal.

    `known`: the other node has met this node before. `cluster_uuid`: the UUID of the other node's cluster, as that node
    last stated it."""
    identity = dataclasses.replace(theirs.identity, cluster_uuid=cluster_uuid)
    node_id, own_cluster = identity.node_id, terms.identity().cluster_uuid
    if cluster_uuid is not None and own_cluster not in (None, cluster_uuid):
        raise Refusal("cluster-uuid", f"{node_id} belongs to cluster {cluster_uuid}, not to {own_cluster}")
    try:
        terms.known.check(node_id, identity.store_uuid)
    except Conflict as conflict:
        removed = terms.known.is_removed(identity.store_uuid)
        raise Refusal("removed" if removed else "store", conflict.message) from None
    _check_levels(terms.identity(), identity)
    return Peer(identity, known), terms.known.get(node_id) is not None


def _check_levels(own: PeerIdentity, theirs: PeerIdentity) -> None:
    """Raise Refusal if one node does not support the feature level of the other node's cluster.

    Such a node could receive data that its version cannot read."""
    for node, cluster_of in ((own, theirs), (theirs, own)):
        if cluster_of.feature_level is not None and cluster_of.feature_level not in node.levels:
            raise Refusal(
                "level",
                f"the version of {node.node_id} supports feature level {node.levels}, and the cluster of "
                f"{cluster_of.node_id} is at {cluster_of.feature_level}",
            )


class _Proofs:
    """Makes and checks the proofs of one handshake. Each proof covers HELLO and CHALLENGE.

    If there are several secrets, `secret` becomes the secret that the other side has proved.
    """

    def __init__(self, secrets: Sequence[bytes], hello: bytes, challenge: bytes) -> None:
        self._secrets = secrets
        self._openings = said(hello, challenge)

    @property
    def secret(self) -> bytes:
        """The secret with which this side makes its proofs."""
        return self._secrets[0]

    def proof(self) -> bytes:
        """Return the body of PROOF."""
        return _pack("proof", self._sign(b"dialer proof"))

    def check_proof(self, body: bytes) -> None:
        """Check a PROOF. Raise Refusal if none of the secrets matches."""
        fields = _unpack(body)
        _check_types(fields, (str, bytes), "proof")
        self._check(fields[1], b"dialer proof")

    def welcome(self, role: str, known: bool, cluster_uuid: str | None) -> bytes:
        """Return the body of WELCOME."""
        return _pack("welcome", known, cluster_uuid, self._sign(_statement(role, known, cluster_uuid)))

    def check_welcome(self, role: str, body: bytes) -> tuple[bool, str | None]:
        """Check a WELCOME of the other side, whose role is `role`. Return its fields `known` and cluster UUID."""
        fields = _unpack(body)
        _check_types(fields, (str, bool, (str, type(None)), bytes), "welcome")
        _, known, cluster_uuid, proof = fields
        self._check(proof, _statement(role, known, cluster_uuid))
        return known, cluster_uuid

    def _sign(self, statement: bytes) -> bytes:
        """Return a proof of a statement, made with the first secret."""
        return prove(self.secret, statement, self._openings)

    def _check(self, proof: bytes, statement: bytes) -> None:
        """Check a proof, and keep only the secrets that match. Raise Refusal if none matches."""
        # Check all secrets, so that the duration does not reveal which secret matches.
        proved = [secret for secret in self._secrets if is_proof(proof, secret, statement, self._openings)]
        if not proved:
            raise Refusal("secret", "the two nodes do not share the same secret")
        self._secrets = proved


def _statement(role: str, known: bool, cluster_uuid: str | None) -> bytes:
    """Return the statement that the proof of a WELCOME covers."""
    return f"{role} welcome ".encode() + _pack(known, cluster_uuid)


def _pack(*fields: Any) -> bytes:
    """Return the body of a handshake frame."""
    body: bytes = msgpack.packb(fields)
    assert len(body) <= HANDSHAKE_BYTES, "the addresses of this node are too long"
    return body


def _unpack(body: bytes) -> list[Any]:
    """Return the fields of a body. Raise Refusal if the body is malformed, or if it is a REFUSED."""
    try:
        fields = msgpack.unpackb(body)
    except Exception as error:  # msgpack raises a dozen kinds
        raise Refusal("malformed", f"a frame of {len(body)} bytes cannot be decoded") from error
    if type(fields) is not list:
        raise Refusal("malformed", "a frame must be an array")
    if len(fields) == 3 and fields[0] == "refused":
        reason, message = fields[1:]
        if not isinstance(reason, str) or not isinstance(message, str):
            raise Refusal("malformed", "a refusal cannot be read")
        raise Refusal(reason, message[:MESSAGE_CHARS], by_peer=True)
    return fields


def _check_types(fields: list[Any], types: tuple[Any, ...], kind: str) -> None:
    """Raise Refusal if the fields do not have exactly these types, or do not begin with the name of the frame.

    A bool does not count as an int. HELLO and CHALLENGE begin with `MAGIC` instead of a name."""
    fit = len(fields) == len(types) and all(
        type(field) in (wanted if isinstance(wanted, tuple) else (wanted,))
        for field, wanted in zip(fields, types, strict=True)
    )
    if not fit or fields[0] not in (kind, MAGIC):
        raise Refusal("malformed", f"this is no {kind.upper()}")
