"""Options for grants and expiry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandctl.options.times import DURATION

if TYPE_CHECKING:
    from sandq.client import Identity

F = TypeVar("F", bound=Callable[..., Any])


def grant_option(command: F) -> F:
    """Add `--grant`, which may be given several times."""
    return click.option(
        "--grant",
        "grants",
        metavar="GRANT",
        multiple=True,
        help=(
            "A right or a role, with its topics and groups: produce, writer:billing.*, "
            "consume:billing.*/mail-*. May be given several times."
        ),
    )(command)


def expires_options(command: F) -> F:
    """Add `--expires` and `--never-expires`."""
    command = click.option("--never-expires", "never", is_flag=True, help="It does not expire.")(command)
    return click.option("--expires", type=DURATION, metavar="DURATION", help="It expires after this time.")(command)


def expiry(expires: timedelta | datetime | None, never: bool) -> timedelta | datetime | None:
    """Return the expiry as the client takes it. Raises UsageError if both options were given."""
    if expires is not None and never:
        raise click.UsageError("--expires and --never-expires cannot be used together")
    return expires


def identity_row(one: Identity) -> dict[str, Any]:
    """Return an identity as it is printed, without its principal."""
    from sandq.model.times import format_instant

    return {
        "grants": list(one.grants),
        "expires": None if one.expires_ms is None else format_instant(one.expires_ms),
        "created": format_instant(one.created_ms),
        "quota": dict(one.quota) or None,
        "note": one.note or None,
    }
