"""Options for the URL of a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sandctl.options.payload import headers_of
from sandctl.options.times import DURATION
from sandq.model.message_targets import CALLBACKS

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--push-url", metavar="URL", help="The URL to which groups with --targets message send the message."),
    click.option(
        "--push-method",
        type=click.Choice(["POST", "PUT", "PATCH", "DELETE", "GET"]),
        help="Method of the request to --push-url.  [default: POST]",
    ),
    click.option(
        "--push-header",
        "push_headers",
        metavar="NAME=VALUE",
        multiple=True,
        help="A header of the request to --push-url. May be given several times.",
    ),
    click.option(
        "--push-timeout",
        type=DURATION,
        metavar="DURATION",
        help="Time limit for the response of --push-url.  [default: the group's]",
    ),
    click.option(
        "--push-callback", metavar="TOPIC", help="Topic that gets a message once --push-url has accepted this one."
    ),
    click.option(
        "--push-failure-callback",
        metavar="TOPIC",
        help="Topic that gets a message if this one is dead after its last request.",
    ),
)


def target_options(command: F) -> F:
    """Add the options for the URL of a message."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def target_of(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the target of a message as `produce` of the client takes it; None without --push-url."""
    given: dict[str, Any] = {
        name: options[f"push_{name}"]
        for name in ("method", "timeout", *CALLBACKS)
        if options[f"push_{name}"] is not None
    }
    if options["push_headers"]:
        given["headers"] = headers_of(options["push_headers"], "--push-header")
    if options["push_url"] is None and given:
        option = next(iter(given)).removesuffix("s").replace("_", "-")
        raise click.UsageError(f"--push-{option} is for --push-url")
    return None if options["push_url"] is None else {"url": options["push_url"], **given}
