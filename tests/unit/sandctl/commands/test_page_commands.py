"""Tests that every `sandctl` command in a document exists with the shown options and arguments."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from sandctl.main import main
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts)]
INLINE = re.compile(r"`(sandctl [^`\n]+)`")
LINE = re.compile(r"^(?: {4}|\$ )?(?:\.venv/bin/)?(sandctl [^\n]+)$", re.M)
WRONG = (click.NoSuchOption, click.BadOptionUsage)


def problem(command: str) -> str | None:
    """Return why a command line cannot be typed, or None. Arguments may be missing: text abbreviates."""
    line = re.split(r";| (?:[|#>]|&&|<<|2>)", command)[0].rstrip(" \\").replace("...", "")
    try:
        words = shlex.split(line)[1:]
    except ValueError:
        return None  # the command continues in the next line
    group: click.Command = main
    # Pass its settings: a command keeps the names of the help option of the first context that asks for them.
    context = click.Context(main, info_name="sandctl", **main.context_settings)
    while isinstance(group, click.Group) and words and words[0] != "COMMAND" and not words[0].startswith("-"):
        found = group.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]!r}"
        group, words = found, words[1:]
        context = click.Context(group, parent=context, info_name=group.name)
    if isinstance(group, click.Group) or any("|" in word or word == "COMMAND" for word in words):
        return None
    try:
        group.make_context(group.name, words, parent=context.parent)
    except click.exceptions.Exit:
        return None
    except WRONG as error:
        return error.format_message()
    except click.UsageError as error:
        text = error.format_message()
        return text if "unexpected extra argument" in text else None
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_can_be_typed(page: object) -> None:
    text = page.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    commands = {*INLINE.findall(text), *LINE.findall(text)}
    wrong = {command: why for command in commands if (why := problem(command)) is not None}
    assert wrong == {}


def test_a_wrong_command_is_found() -> None:
    assert problem("sandctl topik list") == "no command 'topik'"
    assert "No such option" in str(problem("sandctl topic list --nothing"))
    assert "unexpected extra argument" in str(problem("sandctl topic show a b"))
    assert problem("sandctl topic show") is None
