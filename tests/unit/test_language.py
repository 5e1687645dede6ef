"""Tests that hard text does not increase: docstrings, comments, documents, names, and subjects of commits."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.language.checks import budgets, check_markdown, check_name, check_python, counts
from tests.support.language.texts import sentences
from tests.support.paths import ROOT

BEFORE_CHECK = "3bbf071c"
"""Abbreviated hash of the last commit whose subject is not checked."""
SUBJECT_CHARS = 72
NO_VERBS = re.compile(r"^(Have\b|Let\b|What\b|Who\b|[A-Z]\w*(?:ing|ed)\b)")


def patterns_of(source: str) -> list[tuple[int, str]]:
    return [(line, pattern) for line, pattern, _ in check_python(source)]


def test_sentences_that_begin_with_a_clause_are_found() -> None:
    assert patterns_of('"""Who asks is answered. What it is, nobody knows. Return what is left."""') == [
        (1, "start"),
        (1, "start"),
    ]
    assert patterns_of('"""Of entries in memory."""') == [(1, "start")]
    assert patterns_of('"""What is a topic?"""') == [], "a question is a heading"
    assert patterns_of('"""Whose turn it is. Thatch. Whole rows. Official."""') == []


def test_words_and_clauses_are_found_in_comments_and_docstrings() -> None:
    assert patterns_of("x = 1  # the status is another one\n") == [(1, "word")]
    assert patterns_of('"""It is told anew, and so many times, of what is left."""') == [
        (1, "clause"),
        (1, "word"),
        (1, "word"),
        (1, "word"),
    ]
    assert patterns_of('"""It lasts so long that it is cancelled, and as many as there are."""') == []


def test_sentences_over_two_docstrings_are_found() -> None:
    assert patterns_of('a = 1\n"""So it begins ..."""\nb = 2\n"""... and ends."""\n') == [(2, "dots"), (4, "dots")]


def test_headings_with_have_are_found() -> None:
    assert [pattern for _, pattern, _ in check_markdown("# Have a node leave\n\nNodes have weights.\n")] == ["have"]


def test_code_is_left_out() -> None:
    text = '"""Return the text.\n\n    Who = told\n\nSee `whoever`. And [names](told.md)."""'
    assert patterns_of(text) == []
    assert [*check_markdown("```\nWho is told anew\n```\n\nUse `told`.\n")] == []
    assert patterns_of("x: int = 1  # type: ignore[told]\n") == []


def test_lines_of_matches_are_those_of_the_text() -> None:
    assert [line for line, *_ in check_markdown("One.\n\n| a | told |\n|---|---|\n| b | anew |\n")] == [3, 5]
    assert patterns_of("a = 1\n# first\n# told\nb = 2\n# anew\n") == [(2, "word"), (5, "word")]


def test_private_words_in_names_are_found() -> None:
    assert all(map(check_name, ("in_pass", "RoomLeft", "_look_again", "whoever")))
    assert not any(map(check_name, ("deadline", "password", "line", "walkers", "passed", "mushroom")))
    source = "class Twin:\n    way: int = 1\n    def f(self, room):\n        self.turn = room\n        local_lot = 1\n"
    assert sorted(text for _, _, text in check_python(source)) == ["Twin", "room", "turn", "way"]


def test_sentences_end_at_stops() -> None:
    assert sentences("One `a. B`. Two (e.g. this).  Three?\nFour") == ["One X.", "Two (e.g. this).", "Three?", "Four"]


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return dict(counts())


def test_packages_and_documents_keep_their_budgets(found: dict[str, int]) -> None:
    allowed = budgets()
    over = {name: (count, allowed.get(name, 0)) for name, count in found.items() if count > allowed.get(name, 0)}
    assert not over, "python -m tests.support.language PATH lists them; see CONTRIBUTING.md, Style"


def test_budgets_are_of_packages_that_exist(found: dict[str, int]) -> None:
    """`python -m tests.support.language --lower` removes the others."""
    assert budgets().keys() <= found.keys()


def test_subjects_of_commits_are_imperative_and_short() -> None:
    """The check needs the history, which is missing in archives and shallow clones."""
    log = ["git", "log", "--no-merges", "--format=%s", f"{BEFORE_CHECK}..HEAD"]
    found = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    subjects = found.stdout.splitlines() if found.returncode == 0 else []
    bad = [
        subject
        for subject in subjects
        if len(subject) > SUBJECT_CHARS or not subject[:1].isupper() or NO_VERBS.match(subject) or subject.endswith(".")
    ]
    assert bad == []
