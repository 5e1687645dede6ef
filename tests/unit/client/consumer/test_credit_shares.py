"""Tests of the shares of a subscription's credit that its sessions get."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandq.client.consumer.credit import equal_share, is_crowded, shares


def test_nodes_of_one_topic_have_the_same() -> None:
    assert [equal_share(10, sessions) for sessions in (0, 1, 3, 20)] == [10, 10, 4, 1]


def test_session_without_messages_has_credit_for_one() -> None:
    assert shares(10, [None, None]) == [1, 1]
    assert shares(10, [None, 0, None]) == [1, 10, 1]


def test_busy_sessions_share_the_credit() -> None:
    assert shares(10, [3, None, 0]) == [5, 1, 5]
    assert shares(11, [0, 0, 0]) == [4, 4, 3]


def test_messages_held_beyond_a_share_reduce_the_other_shares() -> None:
    held = [10, 0, None]
    assert shares(10, held) == [5, 1, 1]
    assert is_crowded(held, shares(10, held))
    held = [6, 1, None]
    assert shares(10, held) == [5, 4, 1]
    held = [5, 4, None]
    assert shares(10, held) == [5, 5, 1]
    assert not is_crowded(held, shares(10, held))


def test_more_topics_than_credit() -> None:
    assert shares(2, [0, 0, 0]) == [1, 1, 1]


def test_shares_without_credit_or_sessions_are_empty() -> None:
    assert shares(0, [None, 3]) == [0, 0]
    assert shares(5, []) == []


@given(st.integers(1, 50), st.lists(st.one_of(st.none(), st.integers(0, 30)), min_size=1, max_size=8))
def test_shares_add_up_to_the_credit(credit: int, held: list[int | None]) -> None:
    """Held messages and remaining shares add up to the credit, plus at most one message per session.

    All credit is shared.
    """
    targets = shares(credit, held)
    may_hold = sum(max(target, count or 0) for target, count in zip(targets, held, strict=True))
    holding = sum(count or 0 for count in held)
    assert may_hold <= max(credit, holding) + len(held)
    assert min(targets) >= 1
    if any(count is not None for count in held) and not is_crowded(held, targets):
        assert sum(target for target, count in zip(targets, held, strict=True) if count is not None) >= credit
