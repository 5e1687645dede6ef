"""Tests of the handshake of two nodes, frame by frame: admission, reasons of refusal, and changed bytes."""

from __future__ import annotations

import dataclasses
import hmac
import re
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.broker.peers.handshake import (
    HANDSHAKE_BYTES,
    LINK,
    MESSAGE_CHARS,
    REMEDIES,
    STREAM,
    Introduced,
    PeerIdentity,
    Refusal,
    Steps,
    Terms,
    accept,
    dial,
)
from sandq.model.features import FIRST_LEVEL, Levels
from sandq.storage.known_peers import KnownPeers
from sandq.storage.memory_files import MemoryFiles
from tests.support.documents import document

PAGE = document("protocol")
SECRET = b"what all nodes of the cluster share"
NONCE_1, NONCE_2 = b"\x01" * 32, b"\x02" * 32
ONE = PeerIdentity(node_id="node1", store_uuid="store-1", cluster_uuid=None, addresses={"client": "127.0.0.1:7170"})
TWO = PeerIdentity(node_id="node2", store_uuid="store-2", cluster_uuid=None, addresses={"client": "127.0.0.1:7171"})

Meddle = Callable[[int, bytes], bytes]
"""Function from (frame number, body) to the changed body that arrives."""


def terms(who: PeerIdentity, **changes: Any) -> Terms:
    peers = {"node1", "node2", "node3"} - {who.node_id}
    known = KnownPeers.open(MemoryFiles())
    secret = changes.pop("secret", SECRET)
    made = Terms("sandq", lambda: (secret,), lambda: who, peers, known)
    return dataclasses.replace(made, **changes)


def knowing(**stores: str) -> KnownPeers:
    known = KnownPeers.open(MemoryFiles())
    for node, store in stores.items():
        known.pin(node, store)
    return known


def without(node: str, store: str) -> KnownPeers:
    known = KnownPeers.open(MemoryFiles())
    known.remove(node, store)
    return known


class Side:
    """One end of a handshake, with its result or its refusal."""

    def __init__(self, steps: Steps) -> None:
        self.introduced: Introduced | None = None
        self.refusal: Refusal | None = None
        self._steps = steps
        self._begun = False

    @property
    def ended(self) -> bool:
        return bool(self.introduced or self.refusal)

    def step(self, body: bytes | None) -> bytes:
        """The body to send next; empty: none."""
        try:
            return next(self._steps) if body is None else self._steps.send(body)
        except StopIteration as end:
            self.introduced = end.value
            return self.introduced.last if self.introduced else b""
        except Refusal as refusal:
            self.refusal = refusal
            return b"" if refusal.by_peer else refusal.frame()


def same(number: int, body: bytes) -> bytes:
    return body


def shake(one: Terms, two: Terms, purpose: str = LINK, to: str = "node2", meddle: Meddle = same) -> tuple[Side, Side]:
    """node1 dials node2."""
    dialer, acceptor = Side(dial(one, NONCE_1, to, purpose)), Side(accept(two, NONCE_2))
    assert acceptor.step(None) == b""
    body, sides, number = dialer.step(None), (acceptor, dialer), 0
    while body and not sides[0].ended:
        assert len(body) <= HANDSHAKE_BYTES
        body = sides[0].step(meddle(number, body))
        sides, number = (sides[1], sides[0]), number + 1
    return dialer, acceptor


def frames(one: Terms, two: Terms, purpose: str = LINK) -> list[bytes]:
    seen: list[bytes] = []
    shake(one, two, purpose, meddle=lambda number, body: seen.append(body) or body)  # type: ignore[func-returns-value]
    return seen


# ----------------------------------------------------------------------------------------------------------- admission


@pytest.mark.parametrize("purpose", [LINK, STREAM])
@pytest.mark.parametrize("secret", [SECRET, b""])
def test_two_nodes_get_to_know_each_other(purpose: str, secret: bytes) -> None:
    dialer, acceptor = shake(terms(ONE, secret=secret), terms(TWO, secret=secret), purpose)
    assert dialer.introduced is not None and acceptor.introduced is not None
    assert (dialer.introduced.peer.identity, dialer.introduced.purpose) == (TWO, purpose)
    assert (acceptor.introduced.peer.identity, acceptor.introduced.purpose) == (ONE, purpose)
    assert not dialer.introduced.peer.known and not acceptor.introduced.peer.known


@pytest.mark.parametrize(("by_one", "by_two"), [(False, True), (True, False), (True, True)])
def test_each_side_learns_whether_the_other_knew_it_before(by_one: bool, by_two: bool) -> None:
    one = terms(ONE, known=knowing(node2="store-2") if by_one else knowing())
    two = terms(TWO, known=knowing(node1="store-1") if by_two else knowing(node3="store-3"))
    dialer, acceptor = shake(one, two)
    assert dialer.introduced is not None and acceptor.introduced is not None
    assert dialer.introduced.peer.known == by_two
    assert acceptor.introduced.peer.known == by_one


def test_cluster_uuid_is_taken_from_the_last_frame() -> None:
    """The node may have joined a cluster during the handshake."""
    identities = [ONE]

    def joins(number: int, body: bytes) -> bytes:
        if number == 2:
            identities.append(dataclasses.replace(ONE, cluster_uuid="cluster-1"))
        return body

    one = terms(ONE, identity=lambda: identities[-1])
    _, acceptor = shake(one, terms(dataclasses.replace(TWO, cluster_uuid="cluster-1")), meddle=joins)
    assert acceptor.introduced is not None
    assert acceptor.introduced.peer.identity.cluster_uuid == "cluster-1"


def test_a_cluster_that_was_joined_meanwhile_must_be_the_same() -> None:
    identities = [TWO]

    def joins(number: int, body: bytes) -> bytes:
        if number == 4:
            identities.append(dataclasses.replace(TWO, cluster_uuid="cluster-2"))
        return body

    one = terms(dataclasses.replace(ONE, cluster_uuid="cluster-1"))
    _, acceptor = shake(one, terms(TWO, identity=lambda: identities[-1]), meddle=joins)
    assert acceptor.refusal is not None and acceptor.refusal.reason == "cluster-uuid"


def test_a_stream_may_be_opened_by_the_greater_id_too() -> None:
    dialer, acceptor = shake(terms(TWO), terms(ONE), STREAM, to="node1")
    assert dialer.introduced is not None and acceptor.introduced is not None


# ------------------------------------------------------------------------------------------------------------- refusal


def named(identity: PeerIdentity, node_id: str) -> PeerIdentity:
    return dataclasses.replace(identity, node_id=node_id)


UUID_1, UUID_2 = (dataclasses.replace(who, cluster_uuid=f"cluster-{who.node_id}") for who in (ONE, TWO))


@pytest.mark.parametrize(
    ("one", "two", "to", "reason", "says"),
    [
        (terms(ONE, secret=b"another one, as long"), terms(TWO), "node2", "secret", "do not share the same secret"),
        (terms(ONE, secret=b""), terms(TWO), "node2", "secret", "do not share the same secret"),
        (terms(ONE), terms(TWO, secret=b""), "node2", "secret", "do not share the same secret"),
        (terms(ONE, cluster="other"), terms(TWO), "node2", "cluster", "not a node of the cluster 'other'"),
        (terms(ONE), terms(TWO, peers={"node3"}), "node2", "node", "node1 is not among the peers"),
        (terms(ONE, peers={"node3"}), terms(TWO), "node2", "node", "node2 is not among the peers"),
        (terms(named(ONE, "node2")), terms(TWO), "node2", "node", "this node is node2 itself"),
        (terms(ONE), terms(TWO), "node3", "node", "this node is not 'node3'"),
        (terms(UUID_1), terms(UUID_2), "node2", "cluster-uuid", "belongs to cluster cluster-node1, not to cluster-nod"),
        (
            terms(ONE),
            terms(TWO, known=knowing(node1="store-0")),
            "node2",
            "store",
            "node1 returned with another data directory (store store-1 instead of store-0): it takes part in nothing",
        ),
        (
            terms(ONE, known=knowing(node2="store-0")),
            terms(TWO),
            "node2",
            "store",
            "node2 returned with another data directory (store store-2 instead of store-0): it takes part in nothing",
        ),
        (
            terms(ONE, known=without("node2", "store-2")),
            terms(TWO),
            "node2",
            "removed",
            "node2 was removed from the cluster: with its old data directory (store store-2) it takes part in nothing",
        ),
        (
            terms(ONE),
            terms(TWO, known=without("node1", "store-1")),
            "node2",
            "removed",
            "node1 was removed from the cluster",
        ),
    ],
)
def test_a_refusal_reaches_both_sides(one: Terms, two: Terms, to: str, reason: str, says: str) -> None:
    dialer, acceptor = shake(one, two, to=to)
    assert dialer.introduced is None and acceptor.introduced is None
    assert dialer.refusal is not None and acceptor.refusal is not None
    for refusal in (dialer.refusal, acceptor.refusal):
        assert refusal.reason == reason and reason in REMEDIES
        assert says in refusal.message
    assert [dialer.refusal.by_peer, acceptor.refusal.by_peer].count(True) == 1
    assert acceptor.refusal.claimed_id == one.identity().node_id


def test_node_with_greater_id_may_not_dial_a_link() -> None:
    _, acceptor = shake(terms(TWO), terms(ONE), to="node1")
    assert acceptor.refusal is not None and acceptor.refusal.reason == "purpose"


def test_acceptor_must_be_the_dialled_node() -> None:
    """node3 admits every dialer, also a dialer that expects another node."""
    three = named(TWO, "node3")
    bodies: list[bytes] = []

    def meddle(number: int, body: bytes) -> bytes:
        bodies.append(body)
        if number != 0:
            return body
        fields = msgpack.unpackb(body)
        fields[5] = "node3"
        return msgpack.packb(fields)  # type: ignore[no-any-return]

    dialer, _ = shake(terms(ONE, secret=b""), terms(three, secret=b""), meddle=meddle)
    assert dialer.refusal is not None and dialer.refusal.reason == "node"
    assert "node3 is not the node that was expected here" in dialer.refusal.message


def test_stranger_learns_nothing_that_it_did_not_send() -> None:
    """A dialer learns nothing until it has proved that it knows the secret."""
    two = terms(
        PeerIdentity(
            node_id="node2", store_uuid="hidden-store", cluster_uuid="hidden-uuid", addresses={"client": "hidden:1"}
        ),
        cluster="hidden-cluster",
    )
    for one in (terms(ONE), terms(ONE, cluster="x" * 200), terms(named(ONE, "node2")), terms(named(ONE, "evil"))):
        _, acceptor = shake(one, two)
        assert acceptor.refusal is not None
        assert b"hidden" not in acceptor.refusal.frame()
    _, acceptor = shake(terms(ONE, secret=b"guess"), terms(TWO))
    assert acceptor.refusal is not None
    proof = hmac.digest(SECRET, b"", "sha256")
    assert SECRET not in acceptor.refusal.frame() and proof not in acceptor.refusal.frame()


def test_dialer_proves_its_secret_first() -> None:
    """Otherwise any client could collect a proof and guess the secret offline."""
    hello, challenge, proof, *_ = frames(terms(ONE), terms(TWO))
    with_other_secret = frames(terms(ONE), terms(TWO, secret=b"x" * 16))
    assert with_other_secret[:2] == [hello, challenge], "the frames must not contain the secret"
    assert msgpack.unpackb(proof)[0] == "proof"
    assert msgpack.unpackb(with_other_secret[3])[0] == "refused"


# ------------------------------------------------------------------------------------------------------ feature levels


def levelled(
    who: PeerIdentity, lowest: int, highest: int, level: int | None, cluster: str | None = "cluster-1"
) -> Terms:
    """Level numbers start at 0."""
    levels = Levels(FIRST_LEVEL + lowest, FIRST_LEVEL + highest)
    at = None if level is None else FIRST_LEVEL + level
    return terms(dataclasses.replace(who, levels=levels, feature_level=at, cluster_uuid=cluster))


@pytest.mark.parametrize(
    ("two", "by"),
    [
        ((0, 0, 0), "the acceptor's version is too old"),
        ((2, 4, 2), "the acceptor's version is too new"),
    ],
)
def test_node_without_the_cluster_level_is_refused(two: tuple[int, int, int], by: str) -> None:
    for dialer_terms, acceptor_terms in (
        (levelled(ONE, 0, 1, 1), levelled(TWO, *two)),
        (levelled(ONE, *two), levelled(TWO, 0, 1, 1)),
    ):
        dialer, acceptor = shake(dialer_terms, acceptor_terms)
        for side in (dialer, acceptor):
            assert side.refusal is not None and side.refusal.reason == "level", by
            assert re.search("the version of node[12] supports feature level", side.refusal.message), by


def test_levels_that_overlap_are_enough() -> None:
    for two in (levelled(TWO, 0, 4, 1), levelled(TWO, 1, 1, 1), levelled(TWO, 1, 2, None)):
        dialer, acceptor = shake(levelled(ONE, 0, 2, 1), two)
        assert dialer.introduced is not None and acceptor.introduced is not None
        assert acceptor.introduced.peer.identity.levels == (FIRST_LEVEL, FIRST_LEVEL + 2)
        assert acceptor.introduced.peer.identity.feature_level == FIRST_LEVEL + 1


# ------------------------------------------------------------------------------------------------------ changed frames


def test_changed_byte_in_any_frame_is_refused() -> None:
    one, two = terms(ONE), terms(dataclasses.replace(TWO, cluster_uuid="cluster-1"))
    bodies = frames(one, two)
    assert len(bodies) == 5
    for changed, body in enumerate(bodies):
        for at in range(len(body)):
            for flip in (0x01, 0x80, 0xFF):
                wrong = body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :]
                meddled: Meddle = lambda number, body, wrong=wrong, changed=changed: (  # noqa: E731
                    wrong if number == changed else body
                )
                dialer, acceptor = shake(one, two, meddle=meddled)
                refused = dialer if changed % 2 else acceptor
                assert acceptor.refusal is not None, f"frame {changed}, byte {at}, {flip:#x}"
                assert refused.introduced is None, f"frame {changed}, byte {at}, {flip:#x}"


def test_truncated_or_extended_frame_is_refused() -> None:
    one, two = terms(ONE), terms(TWO)
    for changed, body in enumerate(frames(one, two)):
        for wrong in [*(body[:length] for length in range(len(body))), body + b"\0", body * 2]:
            meddled: Meddle = lambda number, body, wrong=wrong, changed=changed: (  # noqa: E731
                wrong if number == changed else body
            )
            _, acceptor = shake(one, two, meddle=meddled)
            assert acceptor.introduced is None, f"frame {changed}: {len(wrong)} of {len(body)} bytes"


def test_a_recorded_handshake_opens_nothing() -> None:
    """The dialer's recorded frames are sent again to the same node and to a node that repeats its own frames."""
    one, two = terms(ONE), terms(TWO)
    recorded = frames(one, two)
    acceptor = Side(accept(two, b"\x03" * 32))
    acceptor.step(None)
    for body in recorded[::2]:
        acceptor.step(body)
        if acceptor.ended:
            break
    assert acceptor.refusal is not None and acceptor.refusal.reason == "secret"
    dialer = Side(dial(one, b"\x04" * 32, "node2", LINK))
    dialer.step(None)
    for body in recorded[1::2]:
        dialer.step(body)
    assert dialer.refusal is not None and dialer.refusal.reason == "secret"


def test_a_mirror_is_no_node() -> None:
    """A node's own messages are no valid reply to it, on the same connection or on a second one."""
    one = terms(ONE, peers={"node1", "node2"})
    dialer = Side(dial(one, NONCE_1, "node1", LINK))
    hello = dialer.step(None)
    dialer.step(hello)
    assert dialer.refusal is not None

    # Between two nodes, where each gets its own proof back instead of the peer's proof.
    for frame in (3, 4):
        bodies = frames(terms(ONE), terms(TWO))
        own = bodies[frame - 1] if frame == 4 else bodies[2]
        meddled: Meddle = lambda number, body, own=own, frame=frame: own if number == frame else body  # noqa: E731
        dialer, acceptor = shake(terms(ONE), terms(TWO), meddle=meddled)
        mirrored = dialer if frame == 3 else acceptor
        assert mirrored.refusal is not None and mirrored.introduced is None
    # The welcome frames of the two roles differ, even with equal content.
    assert bodies[3] != bodies[4]


# -------------------------------------------------------------------------------------------------------- valid frames


HELLO: list[Any] = [
    "sandq-peer",
    3,
    "hello",
    "sandq",
    LINK,
    "node2",
    NONCE_1,
    "node1",
    "store-1",
    None,
    {},
    "default",
    1,
    FIRST_LEVEL,
    FIRST_LEVEL + 2,
    FIRST_LEVEL + 1,
    "0.3.0",
]


def refusal_of(body: bytes) -> Refusal:
    acceptor = Side(accept(terms(TWO), NONCE_2))
    acceptor.step(None)
    acceptor.step(body)
    assert acceptor.refusal is not None
    return acceptor.refusal


def test_hello_of_these_tests_is_valid() -> None:
    acceptor = Side(accept(terms(TWO), NONCE_2))
    acceptor.step(None)
    assert acceptor.step(msgpack.packb(HELLO)) and not acceptor.ended


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (0, "sandq-pear", "malformed"),
        (0, b"sandq-peer", "malformed"),
        (1, 1, "version"),
        (1, 2, "version"),
        (1, True, "version"),
        (1, None, "version"),
        (2, "challenge", "malformed"),
        (3, b"sandq", "malformed"),
        (4, "bulk", "malformed"),
        (5, None, "malformed"),
        (6, b"\x01" * 31, "malformed"),
        (6, b"\x01" * 33, "malformed"),
        (6, "\x01" * 32, "malformed"),
        (7, "", "malformed"),
        (7, "a b", "malformed"),
        (7, "n" * 300, "malformed"),
        (8, "", "malformed"),
        (8, "u" * 65, "malformed"),
        (8, None, "malformed"),
        (9, "", "malformed"),
        (9, 5, "malformed"),
        (10, {"a": 1}, "malformed"),
        (10, [], "malformed"),
        (11, "no name", "malformed"),
        (11, None, "malformed"),
        (12, 0, "malformed"),
        (12, 1001, "malformed"),
        (12, True, "malformed"),
        (10, {str(number): "a:1" for number in range(9)}, "malformed"),
        (13, 0, "malformed"),
        (13, 4, "malformed"),
        (14, None, "malformed"),
        (15, 0, "malformed"),
        (15, True, "malformed"),
        (15, "2", "malformed"),
        (16, "", "malformed"),
        (16, 3, "malformed"),
        (16, "3" * 65, "malformed"),
    ],
)
def test_a_field_that_is_wrong_is_refused(field: int, value: object, reason: str) -> None:
    assert refusal_of(msgpack.packb([*HELLO[:field], value, *HELLO[field + 1 :]])).reason == reason


@pytest.mark.parametrize("fields", [[], HELLO[:1], HELLO[:-1], {"a": 1}, None, 5, "hello"])
def test_invalid_hello_is_refused(fields: object) -> None:
    assert refusal_of(msgpack.packb(fields)).reason == "malformed"


def test_other_version_may_use_another_format() -> None:
    assert refusal_of(msgpack.packb(["sandq-peer", 2])).reason == "version"


def test_fields_of_a_later_version_are_ignored() -> None:
    acceptor = Side(accept(terms(TWO), NONCE_2))
    acceptor.step(None)
    assert acceptor.step(msgpack.packb([*HELLO, {"new": 1}, None])) and not acceptor.ended


@pytest.mark.parametrize(
    ("body", "by_peer", "reason"),
    [
        (["refused", "cluster", "why"], True, "cluster"),
        (["refused", "something new", "why"], True, "something new"),
        (["refused", 5, "why"], False, "malformed"),
        (["refused", "cluster", b"why"], False, "malformed"),
    ],
)
def test_a_refusal_is_read_with_care(body: list[Any], by_peer: bool, reason: str) -> None:
    refusal = refusal_of(msgpack.packb(body))
    assert (refusal.by_peer, refusal.reason) == (by_peer, reason)


def test_a_long_refusal_is_cut() -> None:
    assert len(refusal_of(msgpack.packb(["refused", "cluster", "y" * 4000])).message) == MESSAGE_CHARS
    assert len(Refusal("cluster", "\U0001f40c" * 4000).frame()) <= HANDSHAKE_BYTES


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.tuples(*(st.just(field) | VALUES for field in HELLO)).map(msgpack.packb)
BODIES = st.binary(max_size=200) | VALUES.map(msgpack.packb) | FIELDS


@given(st.lists(BODIES, max_size=3))
def test_garbage_is_refused(bodies: list[bytes]) -> None:
    hello, challenge, proof, *_ = frames(terms(ONE), terms(TWO))
    for begun in ([], [hello], [hello, proof]):
        acceptor = Side(accept(terms(TWO), NONCE_2))
        acceptor.step(None)
        for body in [*begun, *bodies]:
            if not acceptor.ended:
                acceptor.step(body)
        assert acceptor.introduced is None
    for begun in ([], [challenge]):
        dialer = Side(dial(terms(ONE), NONCE_1, "node2", LINK))
        dialer.step(None)
        for body in [*begun, *bodies]:
            if not dialer.ended:
                dialer.step(body)
        assert dialer.introduced is None


# ------------------------------------------------------------------------------------------------------- documentation


def test_documented_bytes_match_the_handshake() -> None:
    blocks = dict(re.findall(r"```peer-hex ([a-z-]+)\n(.*?)```", PAGE, re.DOTALL))
    one = terms(ONE, secret=b"an open secret!!")
    two = terms(dataclasses.replace(TWO, cluster_uuid="cluster-1"), secret=b"an open secret!!")
    sent = frames(one, two)
    names = ["hello", "challenge", "proof", "welcome-acceptor", "welcome-dialer"]
    assert list(blocks) == [*names, "refused"]
    for name, body in zip(names, sent, strict=True):
        assert bytes.fromhex(blocks[name]) == len(body).to_bytes(4, "big") + body, name
    refused = Refusal("secret", "the two nodes do not share the same secret").frame()
    assert bytes.fromhex(blocks["refused"]) == len(refused).to_bytes(4, "big") + refused
    assert all(f"| `{reason}` |" in PAGE for reason in REMEDIES)


def test_documented_proof_matches_the_handshake() -> None:
    """Compute the proof from the documentation alone."""
    hello, challenge, proof, welcome, last = frames(terms(ONE), terms(TWO))
    openings = b"".join(len(body).to_bytes(4, "big") + body for body in (hello, challenge))
    words = msgpack.packb([False, None])
    for body, what in (
        (proof, b"dialer proof"),
        (welcome, b"acceptor welcome " + words),
        (last, b"dialer welcome " + words),
    ):
        assert msgpack.unpackb(body)[-1] == hmac.new(SECRET, what + b"\0" + openings, "sha256").digest()


# ----------------------------------------------------------------------------------------------------- several secrets


OLD, NEW = b"the old one, as long", b"the new one, as long"


@pytest.mark.parametrize(
    ("one", "two", "proved"),
    [
        ((OLD,), (OLD, NEW), OLD),
        ((OLD, NEW), (OLD,), OLD),
        ((OLD, NEW), (NEW, OLD), OLD),
        ((NEW, OLD), (OLD, NEW), NEW),
        ((NEW,), (NEW, OLD), NEW),
    ],
)
def test_a_secret_is_changed_without_two_that_do_not_understand_each_other(
    one: tuple[bytes, ...], two: tuple[bytes, ...], proved: bytes
) -> None:
    """Two nodes at different steps of a secret rotation always share a secret, in either order."""
    for dialing, accepting in ((one, two), (two, one)):
        dialer, acceptor = shake(terms(ONE, secrets=lambda s=dialing: s), terms(TWO, secrets=lambda s=accepting: s))
        assert dialer.introduced is not None and acceptor.introduced is not None
        assert dialer.introduced.secret == acceptor.introduced.secret == dialing[0]
        assert proved in (*dialing, *accepting) and repr(proved) not in repr(dialer.introduced)


def test_handshake_without_common_secret_is_refused() -> None:
    dialer, acceptor = shake(terms(ONE, secrets=lambda: (OLD,)), terms(TWO, secrets=lambda: (NEW,)))
    assert dialer.refusal is not None and acceptor.refusal is not None
    assert acceptor.refusal.reason == "secret"
