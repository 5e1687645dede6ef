"""How two nodes get to know each other, without any I/O: the bodies of frames in, the bodies of frames out.

    dialer    HELLO       [magic, version, "hello", cluster, purpose, to, nonce, node, store, cluster UUID, addresses,
                           zone, weight, lowest feature level, highest feature level, cluster's feature level, ...]
    acceptor  CHALLENGE   [magic, version, "challenge", ...]         the same fields; `to` is the dialer
    dialer    PROOF       ["proof", proof]
    acceptor  WELCOME     ["welcome", known, cluster UUID, proof]
    dialer    WELCOME     ["welcome", known, cluster UUID, proof]
    either    REFUSED     ["refused", reason, message]               instead of its next frame, and then it closes

A proof is HMAC-SHA256, with the secret of the cluster, over who proves what, all bytes of HELLO and CHALLENGE, and what
its own frame says: a byte that is changed anywhere, a frame of another connection or of the other role proves nothing.
The dialer proves first, so that a stranger who connects gets nothing to guess the secret from.

`dial` and `accept` are generators: each yields a body to send (empty: none) and is sent the body that is received next;
it returns when both sides are proved, or raises `Refusal`. What a later version adds to the end of HELLO or CHALLENGE
is passed over. docs/protocol.md has the bytes.
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
"""The body of a frame of the handshake, at most."""
UUID_CHARS: Final = 64
VERSION_CHARS: Final = 64
ADDRESSES_MOST: Final = 8
MESSAGE_CHARS: Final = 500
"""Of a refusal that a peer sends, more is cut off."""

LINK: Final = "link"
"""The one connection of a pair of nodes; the one with the smaller id dials."""
STREAM: Final = "stream"
"""A connection for one large transfer."""

REMEDIES: Final = {
    "malformed": "check that the peer's address is that of a sandq peer port (listen.peer), of this release",
    "version": "run the same release on all nodes",
    "cluster": "give all nodes the same cluster.name, or check the addresses in cluster.peers or cluster.seeds",
    "node": "check node.id and cluster.peers of both nodes",
    "purpose": "check that both nodes have different ids, the same in every cluster.peers",
    "secret": "let cluster.secret_file hold the same on all nodes",
    "tls": "see tls.peer of both nodes: off and accept first, then send, then require, on all; and their certificates",
    "certificate": "let each node have a certificate with its node.id among the DNS names: sandq certs node",
    "place": "set cluster.secret_file on all nodes, or let them listen on and name loopback addresses",
    "cluster-uuid": "one of the two has the data of another cluster: check node.data_dir",
    "store": "give it back its data directory, or remove the node and add it anew",
    "level": "start a version on that node that knows the feature level of the cluster (docs/upgrading.md)",
    "removed": "end that node; to add it anew, start it with an empty data directory",
}
"""What to do, for every reason of a refusal."""


class Refusal(ProtocolError):
    """One side does not take the other; the message tells the other side nothing that it did not say itself, until it
    has proved the secret. `by_peer`: it is the other side that refuses. `claimed_id`: who a dialer said it is."""

    def __init__(self, reason: str, message: str, *, by_peer: bool = False) -> None:
        super().__init__(message, reason=reason)
        self.reason = reason
        self.by_peer = by_peer
        self.claimed_id: str | None = None

    def frame(self) -> bytes:
        """The body of REFUSED."""
        return _pack("refused", self.reason, self.message[:MESSAGE_CHARS])


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """Who a node is. `cluster_uuid`: None before it has formed or joined a cluster. `addresses`: what listens there,
    as "client" -> "host:port". `zone`, `weight`: where it stands, and how much it is to hold beside the others.
    `levels`: the feature levels that its version knows. `feature_level`: what its cluster has come to, as far as it
    knows; None: it does not know. `version`: of sandq; None: it did not say."""

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
    """The other node. `known`: it had met this node with its present store before."""

    identity: PeerIdentity
    known: bool


class Introduced(NamedTuple):
    """What a handshake comes to: who it is, what the connection is for, and the body that is still to be sent."""

    peer: Peer
    purpose: str
    last: bytes = b""
    secret: bytes = b""
    """What both have proved."""

    def __repr__(self) -> str:
        return f"Introduced({self.peer!r}, {self.purpose!r})"


@dataclass(frozen=True, slots=True)
class Terms:
    """What this node asks of others. `peers`: the node ids that may come. `secrets`: as they are now; each is taken,
    and the first one is proved by who dials. One that is empty: there is none."""

    cluster: str
    secrets: Callable[[], Sequence[bytes]]
    identity: Callable[[], PeerIdentity]
    peers: Container[str]
    known: KnownPeers


Steps = Generator[bytes, bytes, Introduced]


def dial(terms: Terms, nonce: bytes, to: str, purpose: str) -> Steps:
    """The side that connected, to the node `to`. `nonce`: `NONCE_BYTES` random bytes, never used twice."""
    own = terms.identity()
    hello = _Opening("hello", terms.cluster, purpose, to, nonce, own).encode()
    challenge = yield hello
    theirs = _Opening.parse(challenge, "challenge")
    _check_place(terms, own, theirs)
    if theirs.identity.node_id != to or theirs.purpose != purpose:
        raise Refusal("node", f"another node was expected here than {theirs.identity.node_id}")
    proofs = _Proofs(terms.secrets()[:1], hello, challenge)
    answer = yield proofs.proof()
    known, cluster_uuid = proofs.check_welcome("acceptor", answer)
    peer, was_known = _met(terms, theirs, known, cluster_uuid)
    return Introduced(peer, purpose, proofs.welcome("dialer", was_known, terms.identity().cluster_uuid), proofs.secret)


def accept(terms: Terms, nonce: bytes, is_certified: Callable[[str], bool] | None = None) -> Steps:
    """The side that was connected to. `nonce`: as for `dial`. `is_certified`: whether the certificate that the other
    side has shown is that of a node; None: the connection has none."""
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
    own, peer_id = terms.identity(), theirs.identity.node_id
    if is_certified is not None and not is_certified(peer_id):
        raise Refusal("certificate", f"the certificate that was shown is not that of {peer_id}")
    _check_place(terms, own, theirs)
    if theirs.purpose == LINK and peer_id > own.node_id:
        raise Refusal("purpose", f"of two nodes the one with the smaller id dials, and {peer_id} has the greater one")
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
    """HELLO or CHALLENGE. `to`: the node that it is meant for."""

    kind: str
    cluster: str
    purpose: str
    to: str
    nonce: bytes
    identity: PeerIdentity

    def encode(self) -> bytes:
        own = self.identity
        fields = (self.kind, self.cluster, self.purpose, self.to, self.nonce)
        who = (own.node_id, own.store_uuid, own.cluster_uuid, own.addresses, own.zone, own.weight)
        return _pack(MAGIC, VERSION, *fields, *who, *own.levels, own.feature_level, own.version)

    @classmethod
    def parse(cls, body: bytes, kind: str) -> _Opening:
        """Raises Refusal when it is none of this kind."""
        fields = _unpack(body)
        if len(fields) < 2 or fields[0] != MAGIC:
            raise Refusal("malformed", "this is no greeting of a sandq node")
        if type(fields[1]) is not int or fields[1] != VERSION:
            raise Refusal("version", f"version {fields[1]!r:.20} of the peer protocol is not known here")
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
        raise Refusal("malformed", "these are no feature levels")
    if identity.version is not None and not 0 < len(identity.version) <= VERSION_CHARS:
        raise Refusal("malformed", "a version is empty or too long")
    _check_uuid(identity.store_uuid)
    _check_uuid(identity.cluster_uuid)
    return identity


def _check_uuid(uuid: str | None) -> None:
    if uuid is not None and not 0 < len(uuid) <= UUID_CHARS:
        raise Refusal("malformed", "a UUID is empty or too long")


def _check_place(terms: Terms, own: PeerIdentity, theirs: _Opening) -> None:
    """Whether the other node belongs here at all, as far as it says itself."""
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
    """The other node, and whether it was known here; after its proof. `cluster_uuid`: what it said last."""
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
    """A node may be written and sent whatever the feature level of its cluster allows: it must know that level."""
    for node, cluster_of in ((own, theirs), (theirs, own)):
        if cluster_of.feature_level is not None and cluster_of.feature_level not in node.levels:
            raise Refusal(
                "level",
                f"the version of {node.node_id} knows feature level {node.levels}, and the cluster of "
                f"{cluster_of.node_id} is at {cluster_of.feature_level}",
            )


class _Proofs:
    """Of one handshake: both openings are part of each. Of several secrets the one counts that the other side
    proves."""

    def __init__(self, secrets: Sequence[bytes], hello: bytes, challenge: bytes) -> None:
        self._secrets = secrets
        self._openings = said(hello, challenge)

    @property
    def secret(self) -> bytes:
        """What is proved."""
        return self._secrets[0]

    def proof(self) -> bytes:
        """The body of PROOF."""
        return _pack("proof", self._sign(b"dialer proof"))

    def check_proof(self, body: bytes) -> None:
        fields = _unpack(body)
        _check_types(fields, (str, bytes), "proof")
        self._check(fields[1], b"dialer proof")

    def welcome(self, role: str, known: bool, cluster_uuid: str | None) -> bytes:
        """The body of WELCOME."""
        return _pack("welcome", known, cluster_uuid, self._sign(_words(role, known, cluster_uuid)))

    def check_welcome(self, role: str, body: bytes) -> tuple[bool, str | None]:
        """`known` and the cluster UUID, as the other side, being `role`, says."""
        fields = _unpack(body)
        _check_types(fields, (str, bool, (str, type(None)), bytes), "welcome")
        _, known, cluster_uuid, proof = fields
        self._check(proof, _words(role, known, cluster_uuid))
        return known, cluster_uuid

    def _sign(self, what: bytes) -> bytes:
        return prove(self.secret, what, self._openings)

    def _check(self, proof: bytes, what: bytes) -> None:
        # All are tried, so that nobody learns how many there are.
        proved = [secret for secret in self._secrets if is_proof(proof, secret, what, self._openings)]
        if not proved:
            raise Refusal("secret", "the two nodes do not share the same secret")
        self._secrets = proved


def _words(role: str, known: bool, cluster_uuid: str | None) -> bytes:
    return f"{role} welcome ".encode() + _pack(known, cluster_uuid)


def _pack(*fields: Any) -> bytes:
    body: bytes = msgpack.packb(fields)
    assert len(body) <= HANDSHAKE_BYTES, "the addresses of this node are too long"
    return body


def _unpack(body: bytes) -> list[Any]:
    """The array that a body is; raises Refusal, also when it is one."""
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
    """Exactly these, but that a bool is no int; and the name of the frame, which all but the openings begin with."""
    fit = len(fields) == len(types) and all(
        type(field) in (wanted if isinstance(wanted, tuple) else (wanted,))
        for field, wanted in zip(fields, types, strict=True)
    )
    if not fit or fields[0] not in (kind, MAGIC):
        raise Refusal("malformed", f"this is no {kind.upper()}")
