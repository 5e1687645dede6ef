"""Tests of `--help`: short helps of one line, and connection options once."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from sandctl.main import main

COLUMNS = 80


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands(main))
GROUPS = [(), *(path for path, command in ALL.items() if isinstance(command, click.Group))]


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_list_of_commands_has_one_row_for_each(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*path, "--help"], terminal_width=COLUMNS).output
    listed = shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    names = [name for *before, name in ALL if tuple(before) == path]
    assert sorted(line.split()[0] for line in listed) == sorted(names)
    assert all(len(line) <= COLUMNS and line.endswith(".") and "..." not in line for line in listed), listed


def test_connection_options_are_shown_by_the_top_command_alone() -> None:
    names = ("--token-file", "--insecure", "--tls", "--ca", "--cert", "--cert-key", "--context", "--timeout")
    top = CliRunner().invoke(main, ["--help"]).output
    assert all(name in top for name in names)
    for path, command in ALL.items():
        if isinstance(command, click.Group):
            continue
        shown = CliRunner().invoke(main, [*path, "--help"]).output
        own = [line.split()[0] for line in shown.splitlines() if line.startswith("  -")]
        assert not {"--token-file", "--insecure", "--tls", "--ca", "--cert-key", "--context"}.intersection(own), path
        if any(parameter.name == "server" for parameter in command.params):
            assert "sandctl --help" in shown, path


def test_delay_options_have_the_names_of_the_api() -> None:
    for path in (("produce",), ("message", "move"), ("message", "update")):
        options = {name for parameter in ALL[path].params for name in parameter.opts}
        assert {"--in", "--delay", "--at", "--deliver-at"} <= options, path
    assert "--delay" in {name for parameter in ALL["lease", "nack"].params for name in parameter.opts}
