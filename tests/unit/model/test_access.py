from __future__ import annotations

import pytest

from sandq.model.access import ROLES, Access, Grant, Right, check_grants, check_role, parse_grant
from sandq.model.errors import Forbidden, InvalidName, InvalidRequest
from sandq.model.limits import FIXED

CUSTOM = {"payments": ["produce:pay.*", "reader:pay.*"], "nested": ["payments", "read"]}


def access(*grants: str) -> Access:
    return Access.of("token:app", grants, CUSTOM)


def test_identity_without_grants_has_no_rights() -> None:
    nobody = access()
    assert not any(nobody.allows(right, topic) for right in Right for topic in (None, "t"))
    assert not nobody.sees("t")


@pytest.mark.parametrize(
    ("grant", "right", "topic", "group", "allowed"),
    [
        ("produce", Right.PRODUCE, "anything", None, True),
        ("produce", Right.CONSUME, "anything", "g", False),
        ("produce:billing.*", Right.PRODUCE, "billing.eu", None, True),
        ("produce:billing.*", Right.PRODUCE, "billing", None, False),
        ("produce:billing.*", Right.PRODUCE, "billing.eu\n", None, True),
        ("produce:billing.*", Right.PRODUCE, "xbilling.eu", None, False),
        ("produce:billing.*", Right.PRODUCE, None, None, False),
        ("consume:a/mail-*", Right.CONSUME, "a", "mail-1", True),
        ("consume:a/mail-*", Right.CONSUME, "a", "sms-1", False),
        ("consume:a/mail-*", Right.CONSUME, "a", None, False),
        ("consume:*/mail-*", Right.CONSUME, "b", "mail-1", True),
        ("consume:*/mail-*", Right.CONSUME, None, "mail-1", True),
        ("manage:a/mail-*", Right.MANAGE, "a", None, False),
        ("cluster", Right.CLUSTER, None, None, True),
        ("cluster", Right.SECURITY, None, None, False),
        ("writer:billing.*", Right.CONSUME, "billing.eu", "g", True),
        ("writer:billing.*", Right.MANAGE, "billing.eu", None, False),
        ("reader", Right.READ, None, None, True),
        ("reader", Right.CONSUME, "t", "g", False),
        ("operator", Right.CLUSTER, None, None, True),
        ("operator", Right.SECURITY, None, None, False),
        ("operator", Right.PRODUCE, "t", None, False),
        ("admin", Right.SECURITY, None, None, True),
        ("payments", Right.PRODUCE, "pay.x", None, True),
        ("payments", Right.READ, "pay.x", None, True),
        ("payments", Right.PRODUCE, "t", None, False),
        ("gone", Right.READ, "t", None, False),
        ("nested", Right.READ, "t", None, True),
        ("nested", Right.PRODUCE, "pay.x", None, False),
    ],
)
def test_grant_allows_only_its_rights_and_names(
    grant: str, right: Right, topic: str | None, group: str | None, allowed: bool
) -> None:
    assert access(grant).allows(right, topic, group) is allowed


def test_topics_are_visible_with_any_right_on_them() -> None:
    one = access("consume:a*/g", "cluster")
    assert one.sees("ab") and not one.sees("b")
    assert not access("cluster", "security").sees("a")


def test_a_refusal_names_right_principal_and_topic() -> None:
    with pytest.raises(Forbidden) as caught:
        access("reader").check(Right.CONSUME, "orders", "mail")
    error = caught.value
    assert error.message.startswith("token:app has no right to consume on topic 'orders', group 'mail'")
    assert error.details == {"right": "consume", "principal": "token:app", "topic": "orders"}
    access("reader").check(Right.READ, "orders")
    with pytest.raises(Forbidden, match="no right to cluster:"):
        access("reader").check(Right.CLUSTER)


def test_covers_accepts_only_own_grants() -> None:
    admin, writer = access("admin"), access("writer:billing.*")
    assert admin.covers(writer.grants) and admin.covers(admin.grants)
    assert not writer.covers(admin.grants)
    assert writer.covers([Grant(Right.CONSUME, "billing.*", "mail")])
    assert not writer.covers([Grant(Right.CONSUME)])


@pytest.mark.parametrize("text", ["produce", "produce:a.*", "consume:a/b*", "writer:x", "admin", "payments", "cluster"])
def test_grants_are_kept_as_they_are_written(text: str) -> None:
    assert check_grants([text, text], CUSTOM) == [text]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "1 to"),
        ("x" * (FIXED.grant_chars + 1), "1 to"),
        (7, "1 to"),
        ("produce:", "no pattern"),
        ("produce:a b", "no pattern"),
        ("consume:a/", "no pattern"),
        ("cluster:a", "of the whole cluster"),
        ("payments:a", "topics of its own"),
        ("writing", "neither a right nor a role"),
        ("-x", "not allowed"),
    ],
)
def test_grants_that_are_wrong(text: object, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_grants([text], CUSTOM)


@pytest.mark.parametrize("texts", [[], "admin", None, ["reader"] * (FIXED.grants + 1)])
def test_grants_are_a_list_of_some(texts: object) -> None:
    with pytest.raises(InvalidRequest, match="a list of 1 to"):
        check_grants(texts, CUSTOM)


def test_roles_consist_of_rights_and_built_in_roles() -> None:
    with pytest.raises(InvalidRequest, match="neither"):
        check_grants(["payments"], None)
    assert check_role("payments") == "payments"
    for taken in (*ROLES, *Right):
        with pytest.raises(InvalidRequest, match="choose another name"):
            check_role(taken)
    with pytest.raises(InvalidName):
        check_role("a b")


def test_grants_are_parsed_as_they_are_shown() -> None:
    for grant in (Grant(Right.PRODUCE), Grant(Right.READ, "a*"), Grant(Right.CONSUME, "*", "g"), Grant(Right.CLUSTER)):
        assert parse_grant(str(grant)).expanded({}) == [grant]


def test_some_groups_are_not_all_of_them_and_answers_are_kept_apart() -> None:
    access = Access.of("token:a", ["consume:orders/mail-*"], {})
    for _ in range(2):  # the second result comes from the cache
        assert access.allows_some(Right.CONSUME, "orders") and not access.allows_some(Right.CONSUME, "payments")
        assert not access.allows(Right.CONSUME, "orders") and access.allows(Right.CONSUME, "orders", "mail-eu")
    assert not access.allows(Right.CONSUME, "orders", "\0"), "no group has this name"


def test_cached_decisions_are_bounded() -> None:
    access = Access.of("token:a", ["read:a*"], {})
    for number in range(3000):
        assert access.allows(Right.READ, f"a{number}") and not access.allows(Right.READ, f"b{number}")
    assert len(access._known) <= 1024
