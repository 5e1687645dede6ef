"""Confirmation before something is destroyed. Without a terminal, --yes is required."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(command: F) -> F:
    """Add `--yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def can_ask() -> bool:
    """Return whether a user is at the terminal."""
    return sys.stdin.isatty()


def need_yes(what: str) -> None:
    """Raise UsageError if nobody can confirm `what` ("deleting a topic deletes its messages")."""
    if not can_ask():
        raise click.UsageError(f"{what}: say --yes")


def confirm_name(name: str, what: str, nothing: str) -> None:
    """Ask the user to type the name. Raises UsageError if the user types a different name.

    `what` says what will happen after the confirmation; `nothing` says what did not happen without it."""
    typed = click.prompt(f"{what}. Type its name to continue", err=True)
    if typed != name:
        raise click.UsageError(f"the name differs: nothing was {nothing}")


def confirm(question: str, nothing: str) -> None:
    """Ask yes or no. Raises ClickException on no."""
    if not click.confirm(question, err=True):
        raise click.ClickException(f"nothing was {nothing}")
