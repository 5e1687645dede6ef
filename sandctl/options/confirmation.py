"""Asking before something is destroyed. Who cannot be asked (no terminal) must say --yes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(command: F) -> F:
    """`--yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def can_ask() -> bool:
    """Whether somebody sits at the terminal."""
    return sys.stdin.isatty()


def need_yes(what: str) -> None:
    """UsageError when nobody can be asked about `what` ("deleting a topic deletes its messages")."""
    if not can_ask():
        raise click.UsageError(f"{what}: say --yes")


def confirm_name(name: str, what: str, nothing: str) -> None:
    """Have the name typed; UsageError when it is another one. `what` is what happens, `nothing` what did not."""
    typed = click.prompt(f"{what}. Type its name to go on", err=True)
    if typed != name:
        raise click.UsageError(f"the name is another one: nothing was {nothing}")


def confirm(question: str, nothing: str) -> None:
    """A yes or no; ClickException on no."""
    if not click.confirm(question, err=True):
        raise click.ClickException(f"nothing was {nothing}")
