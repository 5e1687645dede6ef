from __future__ import annotations

import msgpack
import pytest

from sandq.metadata import commands as m
from sandq.metadata.records import Partition, Topic
from sandq.metadata.state import MetadataState
from sandq.model.errors import (
    Conflict,
    Corruption,
    InvalidName,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    StartupError,
    TopicExists,
    UnknownTopic,
)
from sandq.model.features import FIRST_LEVEL, Levels
from sandq.model.limits import FIXED
from sandq.tools.wal.decode import command_record
from tests.support.registered import register_node

T = 1_800_000_000_000


class Table:
    """The metadata state machine with its rows in a dict. Each entry is encoded and decoded before it is applied."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.state = MetadataState()
        self.index = 0
        self.apply(register_node("n1", "store", {"client": "127.0.0.1:7170"}))

    def apply(self, *commands: m.Command) -> list[object]:
        self.index += 1
        entry = m.Entry.decode(m.Entry(T, commands).encode())
        results = self.state.apply(self.index, entry, self._put)
        self.state.write_state(self._put)
        return results

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value

    def create(self, name: str, partitions: int = 1) -> object:
        return self.apply(m.CreateTopic(name, "timer", 1, [["n1"]] * partitions, {"lease_ms": 1}))[0]


def test_numbers_are_never_reused() -> None:
    table = Table()
    first = table.create("t", 2)
    table.apply(m.DeleteTopic("t"))
    second = table.create("t", 2)
    assert isinstance(first, Topic) and isinstance(second, Topic)
    assert (first.number, second.number) == (1, 2)
    assert [p.group for p in first.partitions + second.partitions] == [1, 2, 3, 4]
    members = [p.members[0] for p in first.partitions + second.partitions]
    assert members == ["n1#1", "n1#2", "n1#3", "n1#4"]


def test_refusals_change_nothing_and_the_rest_of_the_entry_is_applied() -> None:
    table = Table()
    table.create("t")
    results = table.apply(
        m.CreateTopic("t", "timer", 1, [["n1"]], {}),
        m.DeleteTopic("nobody"),
        m.CreateTopic("u", "timer", 1, [["elsewhere"]], {}),
        m.CreateTopic("sandq.orders", "timer", 1, [["n1"]], {}),
        m.CreateTopic("v", "timer", 1, [["n1"]], {}),
    )
    assert [type(result) for result in results] == [TopicExists, UnknownTopic, InvalidRequest, InvalidName, Topic]
    assert sorted(table.state.topics) == ["t", "v"]


def test_loaded_rows_give_the_same_state() -> None:
    table = Table()
    table.create("t", 3)
    table.create("u")
    table.apply(m.DeleteTopic("u"))
    loaded = MetadataState.load(list(table.rows.items()))
    assert vars(loaded) == vars(table.state)


def test_an_index_that_was_applied_changes_nothing() -> None:
    table = Table()
    table.create("t")
    assert table.state.apply(table.index, m.Entry(T, [m.DeleteTopic("t")]), table._put) == []
    assert "t" in table.state.topics


# -- assignments ------------------------------------------------------------------------------------------------------


def partition_of(table: Table, name: str = "t", at: int = 0) -> Partition:
    return table.state.topics[name].partitions[at]


def three() -> Table:
    table = Table()
    for node in ("n2", "n3", "n4"):
        table.apply(register_node(node, f"store-{node}", {}))
    table.apply(m.CreateTopic("t", "timer", 2, [["n1", "n2"]], {}))
    return table


def test_assign_adds_new_member_and_keeps_former_until_settled() -> None:
    table = three()
    first = partition_of(table)
    table.apply(m.Assign(first.group, 0, ["n1", "n3"]))
    moved = partition_of(table)
    assert moved.members == ("n1#1", "n3#3") and moved.former == ("n2#2",) and moved.moving
    assert moved.may_have("n2", 2) and not moved.may_have("n2", 3) and not moved.may_have("n4", 4)
    table.apply(m.Settle(first.group, 1, True))
    settled = partition_of(table)
    assert settled.former == () and not settled.moving and not settled.may_have("n2", 2)
    assert settled.first == first.first


def test_node_that_returns_before_settle_keeps_its_member_id() -> None:
    """The group may still have the old member, and a node cannot have two replicas of one group."""
    table = three()
    group = partition_of(table).group
    table.apply(m.Assign(group, 0, ["n1", "n3"]), m.Assign(group, 1, ["n1", "n2"]))
    back = partition_of(table)
    assert back.members == ("n1#1", "n2#2") and back.former == ("n3#3",) and back.moving
    table.apply(m.Settle(group, 2, True), m.Assign(group, 2, ["n1", "n3"]))
    assert partition_of(table).members == ("n1#1", "n3#4"), "after the settle the node gets a new member id"


def test_a_report_of_an_older_assignment_settles_nothing() -> None:
    table = three()
    group = partition_of(table).group
    table.apply(m.Assign(group, 0, ["n1", "n3"]), m.Assign(group, 1, ["n1", "n4"]))
    (refused,) = table.apply(m.Settle(group, 1, True))
    assert isinstance(refused, Conflict) and set(partition_of(table).former) == {"n2#2", "n3#3"}
    (refused,) = table.apply(m.Assign(group, 1, ["n3", "n4"]))
    assert isinstance(refused, Conflict) and partition_of(table).epoch == 2


def test_incomplete_settle_removes_former_members() -> None:
    """A wanted member may be away. It must not keep the former members in the group."""
    table = three()
    group = partition_of(table).group
    table.apply(m.Assign(group, 0, ["n1", "n3"]), m.Settle(group, 1, False))
    assert partition_of(table).former == () and partition_of(table).moving and not partition_of(table).may_have("n2", 2)


def test_leader_change_is_not_a_move() -> None:
    table = three()
    group = partition_of(table).group
    table.apply(m.Assign(group, 0, ["n2", "n1"]))
    turned = partition_of(table)
    assert turned.members == ("n2#2", "n1#1") and not turned.moving and turned.epoch == 1
    table.apply(m.Assign(group, 1, ["n2", "n3"]), m.Assign(group, 2, ["n3", "n2"]))
    assert partition_of(table).moving, "the running move continues"


@pytest.mark.parametrize("nodes", [[], ["n1", "n1"], ["n1", "nobody"]])
def test_invalid_assignment_is_refused(nodes: list[str]) -> None:
    table = three()
    (refused,) = table.apply(m.Assign(partition_of(table).group, 0, nodes))
    assert isinstance(refused, InvalidRequest) and partition_of(table).epoch == 0


def test_partitions_are_added_once() -> None:
    table = three()
    update = m.UpdateTopic("t", {"lease_ms": 2}, 2, 1, [["n2", "n3"], ["n3", "n4"]])
    (topic, refused) = table.apply(update, update)
    assert isinstance(topic, Topic) and isinstance(refused, Conflict)
    assert [p.nodes for p in table.state.topics["t"].partitions] == [("n1", "n2"), ("n2", "n3"), ("n3", "n4")]
    assert table.state.topics["t"].initial_partitions == 1
    assert table.state.partition_of_group == {1: ("t", 0), 2: ("t", 1), 3: ("t", 2)}
    assert vars(MetadataState.load(list(table.rows.items()))) == vars(table.state)


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_is_removed_once_nothing_is_on_it_and_its_name_is_another_member_then() -> None:
    table = three()
    (refused,) = table.apply(m.RemoveNode("n4", "store-n4"))
    assert isinstance(refused, Conflict), "no client requested the removal"
    group = partition_of(table).group
    results = table.apply(
        m.ChangeStanding("n2", "removing"),
        m.RemoveNode("n2", "store-n2"),
        m.Assign(group, 0, ["n1", "n3"]),
        m.RemoveNode("n2", "store-n2"),
        m.Settle(group, 1, True),
        m.ChangeStanding("n2", "in"),
        m.RemoveNode("n2", "store-n2"),
    )
    kinds = [isinstance(result, Conflict) for result in results]
    assert kinds == [False, True, False, True, False, True, False], (
        "a node that holds or may hold the group cannot be removed"
    )
    assert "n2" not in table.state.nodes and table.state.removed["n2"].stores == ("store-n2",)
    (old, _) = table.apply(register_node("n2", "store-n2", {}), register_node("n2", "fresh", {}, incarnation=2))
    assert isinstance(old, Conflict) and table.state.nodes["n2"].incarnation == 2
    table.apply(m.ChangeStanding("n2", "removing"), m.RemoveNode("n2", "fresh"))
    assert table.state.removed["n2"].stores == ("store-n2", "fresh") and table.state.removed["n2"].incarnation == 2
    assert vars(MetadataState.load(list(table.rows.items()))) == vars(table.state)


def test_node_registered_again_keeps_its_state() -> None:
    table = three()
    table.apply(m.MarkNode("n2", T), m.ChangeStanding("n2", "draining"))
    table.apply(register_node("n2", "store-n2", {"client": "h:2"}, zone="b", weight=3))
    node = table.state.nodes["n2"]
    assert (node.failed_since_ms, node.standing, node.zone, node.weight) == (T, "draining", "b", 3)
    (refused,) = table.apply(register_node("n2", "another", {}))
    assert isinstance(refused, Conflict)
    for command in (m.MarkNode("nobody", T), m.ChangeStanding("nobody", "in"), m.RemoveNode("nobody", "")):
        assert isinstance(table.apply(command)[0], NotFound)
    assert isinstance(table.apply(m.ChangeStanding("n3", "lost"))[0], InvalidRequest)


# -- feature levels ---------------------------------------------------------------------------------------------------


def levels(node: str, lowest: int, highest: int) -> m.RegisterNode:
    return register_node(node, f"store of {node}", {}, lowest_level=lowest, highest_level=highest)


L1, L2, L3, L4 = (FIRST_LEVEL + more for more in range(4))


def test_feature_level_rises_to_the_common_level_and_never_falls() -> None:
    table = Table()
    assert table.state.feature_level == L1
    (refused,) = table.apply(m.RaiseFeatureLevel(L2))
    assert isinstance(refused, Conflict) and f"n1 does not know feature level {L2}" in refused.message
    table.apply(register_node("n1", "store", {}, lowest_level=L1, highest_level=L3), levels("n2", L1, L2))
    assert table.apply(m.RaiseFeatureLevel(L2), m.RaiseFeatureLevel(L1)) == [L2, L2]
    assert isinstance(table.apply(m.RaiseFeatureLevel(L3))[0], Conflict)
    assert MetadataState.load(list(table.rows.items()), Levels(L1, L2)).feature_level == L2
    too_old, too_new, fits = table.apply(levels("n3", L1, L1), levels("n4", L3, L4), levels("n5", L2, L4))
    assert isinstance(too_old, Conflict) and f"knows feature level {L1}, the cluster is at {L2}" in too_old.message
    assert isinstance(too_new, Conflict) and f"knows feature level {L3} to {L4}" in too_new.message
    assert not isinstance(fits, Exception) and set(table.state.nodes) == {"n1", "n2", "n5"}


def test_data_of_a_level_that_is_not_known_is_not_opened() -> None:
    table = Table()
    table.apply(register_node("n1", "store", {}, lowest_level=L1, highest_level=L3), m.RaiseFeatureLevel(L3))
    rows = list(table.rows.items())
    said = f"is of feature level {L3}, and this version supports {L1} to {L2}"
    with pytest.raises(StartupError, match=f"{said}: start a version"):
        MetadataState.load(rows, Levels(L1, L2))
    with pytest.raises(StartupError, match=f"this version supports {L4}"):
        MetadataState.load(rows, Levels(L4, L4))
    # Rows of that level may have another format, but the message is the same.
    rows = [(b"p" + bytes(8), msgpack.packb(5)), (b"nn1", msgpack.packb("?")), (b"s", table.rows[b"s"])]
    with pytest.raises(StartupError, match=said):
        MetadataState.load(rows, Levels(L1, L2))


def test_empty_state_accepts_any_level() -> None:
    assert MetadataState.load([], Levels(L2, L3)).topics == {}


def test_commands_of_a_newer_version_are_called_that() -> None:
    with pytest.raises(StartupError, match=r"commands of types \[77\].*a newer version"):
        m.Entry.decode(msgpack.packb((1, T, [(11, ["n1"]), (77, "what")])))
    with pytest.raises(Corruption, match="a newer version has written it"):
        m.Entry.decode(msgpack.packb((1, T, [(11, ["n1"], "more")])))


# -- pushes -----------------------------------------------------------------------------------------------------------

PUSH = {"url": "https://x.example/", "secrets": ["whsec_secret"], "concurrency": 3, "timeout_ms": 5000}


def test_a_push_is_kept_until_it_ends() -> None:
    table = Table()
    table.create("t")
    assert table.apply(m.SetPush("t", "g", PUSH), m.SetPush("t", "h", PUSH), m.SetPush("t", "h", None)) == [
        PUSH,
        PUSH,
        None,
    ]
    assert table.apply(m.SetPush("t", "g", PUSH | {"concurrency": 4})) == [PUSH | {"concurrency": 4}]
    assert table.state.pushes == {("t", "g"): PUSH | {"concurrency": 4}}
    assert MetadataState.load(list(table.rows.items())).pushes == table.state.pushes
    assert {key for key in table.rows if key[:1] == b"h"} == {b"ht\0g"}
    assert table.apply(m.SetPush("t", "nobody", None)) == [None]


def test_pushes_go_with_their_topic_and_no_other() -> None:
    table = Table()
    table.create("t")
    table.create("t2")
    table.apply(m.SetPush("t", "g", PUSH), m.SetPush("t2", "g", PUSH), m.DeleteTopic("t"))
    assert set(table.state.pushes) == {("t2", "g")}
    assert {key for key in table.rows if key[:1] == b"h"} == {b"ht2\0g"}
    (refusal,) = table.apply(m.SetPush("t", "g", PUSH))
    assert isinstance(refusal, UnknownTopic)


def test_number_of_pushes_is_limited() -> None:
    table = Table()
    table.create("t")
    table.apply(*[m.SetPush("t", f"g{number}", PUSH) for number in range(FIXED.pushed_groups)])
    (refusal,) = table.apply(m.SetPush("t", "more", PUSH))
    assert isinstance(refusal, InvalidRequest) and refusal.details["limit"] == "pushed_groups"
    assert table.apply(m.SetPush("t", "g7", PUSH | {"concurrency": 5}), m.SetPush("t", "g8", None)) == [
        PUSH | {"concurrency": 5},
        None,
    ]
    assert table.apply(m.SetPush("t", "more", PUSH)) == [PUSH]


def test_secrets_of_a_push_are_in_no_text_of_its_command() -> None:
    command = m.SetPush("t", "g", PUSH)
    assert "secret" not in repr(command)
    assert m.Entry.decode(m.Entry(T, [command]).encode()).commands == [command]
    told = command_record(command, values=True)
    assert told["push"]["url"] == PUSH["url"] and "whsec_secret" not in str(told)
    assert command_record(m.SetPush("t", "g", None), values=False)["push"] is None


# -- identities and roles ---------------------------------------------------------------------------------------------

HASH = bytes(range(32))


def identity(principal: str = "token:app", **changed: object) -> m.PutIdentity:
    """Return a command that creates an identity, with these changes."""
    fields: dict[str, object] = {
        "is_new": True,
        "grants": ["writer:billing.*"],
        "secret_hash": HASH,
        "expires_ms": T + 1,
        "quota": {"topics": 3},
        "note": "the billing jobs",
    }
    return m.PutIdentity(principal, **{**fields, **changed})  # type: ignore[arg-type]


def test_identities_and_roles_are_kept_until_they_are_deleted() -> None:
    table = Table()
    [grants] = table.apply(m.PutRole("payments", ["produce:pay.*"]))
    [made] = table.apply(identity(grants=["payments", "reader"]))
    assert grants == ("produce:pay.*",)
    assert made == table.state.identities["token:app"]
    assert (made.created_ms, made.expires_ms, made.secret_hash) == (T, T + 1, HASH)  # type: ignore[attr-defined]
    loaded = MetadataState.load(list(table.rows.items()))
    assert (loaded.identities, loaded.roles) == (table.state.identities, table.state.roles)
    [changed] = table.apply(identity(is_new=False, grants=["reader"], expires_ms=None, quota={}, note=""))
    assert (changed.grants, changed.quota, changed.created_ms) == (("reader",), {}, T)  # type: ignore[attr-defined]
    assert table.apply(m.DeleteIdentity("token:app"), m.DeleteRole("payments")) == [changed, None]
    assert not [key for key in table.rows if key[:1] in b"ir"]


def test_identities_are_refused_that_do_not_fit() -> None:
    table = Table()
    table.apply(identity())
    refusals = table.apply(
        identity(),
        identity("token:other", is_new=False),
        identity("token:third", grants=["nobody"]),
        m.DeleteIdentity("token:third"),
        m.DeleteRole("nobody"),
    )
    assert [type(refusal) for refusal in refusals] == [Conflict, NotFound, NotFound, NotFound, NotFound]
    assert list(table.state.identities) == ["token:app"]


def test_a_role_stays_while_identities_have_it() -> None:
    table = Table()
    table.apply(m.PutRole("payments", ["produce:pay.*"]), identity(grants=["payments"]))
    [refusal] = table.apply(m.DeleteRole("payments"))
    assert isinstance(refusal, Conflict) and "'token:app'" in refusal.message
    table.apply(m.DeleteIdentity("token:app"))
    assert table.apply(m.DeleteRole("payments")) == [None]


def test_number_of_identities_is_limited() -> None:
    table = Table()
    table.apply(*[identity(f"token:t{number}") for number in range(FIXED.identities)])
    [refusal, changed] = table.apply(identity("jwt:one more"), identity("token:t0", is_new=False))
    assert isinstance(refusal, InvalidRequest) and refusal.details["limit"] == "identities"
    assert changed == table.state.identities["token:t0"]


def test_hashes_of_tokens_are_in_no_text_of_command_and_record() -> None:
    table = Table()
    [record] = table.apply(identity())
    assert repr(HASH) not in repr(identity()) + repr(record)
    assert HASH.hex() not in str(command_record(identity(), values=True))


# -- owners -----------------------------------------------------------------------------------------------------------


def owned(name: str, partitions: int = 1, owner: str | None = "token:app") -> m.CreateTopic:
    return m.CreateTopic(name, "timer", 1, [["n1"]] * partitions, {}, owner)


def test_a_quota_bounds_the_topics_and_partitions_of_an_owner() -> None:
    table = Table()
    table.apply(identity(quota={"topics": 2, "partitions": 5}), identity("token:other", quota={}))
    made = table.apply(owned("a", 2), owned("b", 4), owned("b", 3), owned("c"), owned("c", 9, "token:other"))
    assert [type(result) for result in made] == [Topic, QuotaExceeded, Topic, QuotaExceeded, Topic]
    assert isinstance(made[1], QuotaExceeded) and isinstance(made[3], QuotaExceeded)
    assert made[1].details == {"quota": "partitions", "maximum": 5, "principal": "token:app"}
    assert made[3].details["quota"] == "topics"
    [refusal] = table.apply(m.UpdateTopic("a", {}, 1, 2, [["n1"]]))
    assert isinstance(refusal, QuotaExceeded)
    [_, changed] = table.apply(m.DeleteTopic("b"), m.UpdateTopic("a", {}, 1, 2, [["n1"]]))
    assert isinstance(changed, Topic) and changed.owner == "token:app"


def test_a_refused_topic_takes_no_numbers() -> None:
    table, other = Table(), Table()
    for one in (table, other):
        one.apply(identity(quota={"topics": 0}))
    table.apply(owned("a"))
    assert table.create("b") == other.create("b")


def test_an_owner_is_kept() -> None:
    table = Table()
    table.apply(owned("a"), owned("b", 1, None))
    loaded = MetadataState.load(list(table.rows.items()))
    assert loaded.topics == table.state.topics
    assert [topic.owner for topic in loaded.topics.values()] == ["token:app", None]


def test_an_owner_without_an_identity_has_no_quota() -> None:
    table = Table()
    [made] = table.apply(owned("a", 3, "jwt:somebody"))
    assert isinstance(made, Topic) and made.owner == "jwt:somebody"
