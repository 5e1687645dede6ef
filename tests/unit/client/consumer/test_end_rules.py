"""Tests of messages whose handler raised: `Retry`, `Dead`, `retry_on`, `dead_on`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sandq
from sandq.client.consumer.end_rules import EndRules
from sandq.model.errors import InvalidRequest, InvalidTime


class Several(BaseExceptionGroup[BaseException]):
    pass


def group_of(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("several", list(errors))


@pytest.mark.parametrize(
    ("options", "error", "is_dead"),
    [
        ({}, ValueError(), False),
        ({"dead_on": ValueError}, ValueError(), True),
        ({"dead_on": (KeyError, LookupError)}, IndexError(), True),
        ({"dead_on": ValueError}, KeyError(), False),
        ({"retry_on": OSError}, TimeoutError(), False),
        ({"retry_on": (OSError, KeyError)}, ValueError(), True),
        ({"retry_on": ()}, ValueError(), True),
        ({"retry_on": OSError, "dead_on": FileNotFoundError}, FileNotFoundError(), True),
        ({"retry_on": FileNotFoundError, "dead_on": OSError}, FileNotFoundError(), True),
        ({"retry_on": FileNotFoundError, "dead_on": OSError}, ValueError(), True),
        ({"retry_on": ()}, SystemExit(1), False),
        ({"retry_on": ()}, asyncio.CancelledError(), False),
        ({"dead_on": ValueError}, group_of(ValueError()), True),
        ({"dead_on": ValueError}, group_of(ValueError(), group_of(ValueError())), True),
        ({"dead_on": ValueError}, group_of(ValueError(), KeyError()), False),
        ({"dead_on": ValueError}, group_of(ValueError(), sandq.Dead()), True),
        ({"dead_on": ValueError}, group_of(ValueError(), sandq.Retry()), False),
        ({"retry_on": ()}, group_of(ValueError(), SystemExit()), False),
        ({"retry_on": (Several, OSError)}, Several("several", [ValueError()]), False),
        ({"dead_on": Several}, Several("several", [ValueError(), SystemExit()]), True),
        ({"dead_on": Several}, group_of(ValueError()), False),
        ({"retry_on": ()}, sandq.Retry(), False),
        ({"dead_on": Exception}, sandq.Retry(), False),
        ({"retry_on": Exception}, sandq.Dead(), True),
    ],
)
def test_rules_decide_which_exceptions_are_dead(options: Any, error: BaseException, is_dead: bool) -> None:
    assert EndRules(**options).rule(error).is_dead is is_dead


def test_chosen_outcome_of_handler_is_expected() -> None:
    rules = EndRules(retry_on=())
    assert rules.rule(group_of(sandq.Retry("5m", "429", count=False))) == (False, True, "429", "5m", False)
    together = group_of(sandq.Retry("1s", "a", count=False), group_of(sandq.Retry("5m", "429", count=False)))
    assert rules.rule(together) == (False, True, "429", "5m", False)
    assert rules.rule(group_of(together, sandq.Retry(error="b"))) == (False, True, "429", None, True)
    assert rules.rule(sandq.Retry()) == (False, True, "to be tried again", None, True)
    assert rules.rule(group_of(sandq.Dead("410 gone"))) == (True, True, "410 gone", None, True)
    assert rules.rule(ValueError("x")) == (True, False, "ValueError: x", None, True)


def test_a_dead_one_says_why() -> None:
    assert str(sandq.Dead()) == "given up"
    assert str(sandq.Dead(ValueError("x"))) == "ValueError: x"
    caused = sandq.Dead()
    caused.__cause__ = KeyError("shelf")
    assert str(caused) == "KeyError: 'shelf'"


@pytest.mark.parametrize("wrong", ["ValueError", ValueError(), int, (ValueError, 3), [ValueError], None])
def test_argument_that_is_no_exception_class_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="dead_on: a class of exceptions or a tuple of them is expected"):
        EndRules(dead_on=wrong)
    if wrong is not None:
        with pytest.raises(InvalidRequest, match="retry_on: a class of exceptions"):
            EndRules(retry_on=wrong)


def test_a_retry_is_checked_where_it_is_made() -> None:
    with pytest.raises(InvalidTime):
        sandq.Retry("soon")
    with pytest.raises(InvalidRequest, match="count: True or False"):
        sandq.Retry("5s", count=0)  # type: ignore[arg-type]
