"""`sandctl group push`: groups whose messages are POSTed to a URL."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import group_argument, topic_argument
from sandctl.options.times import DURATION, limit_option
from sandctl.output.results import done, say, show_one, show_rows
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client

_COLUMNS = {
    "group": "GROUP",
    "url": "URL",
    "state": "STATE",
    "concurrency": "CONCURRENCY",
    "request_timeout": "TIMEOUT",
    "error": "LAST ERROR",
}
SECRET_FILE_BYTES = 64 << 10


@click.group()
def push() -> None:
    """Have the messages of a group POSTed to a URL, each at its time.

    Each request is signed. 2xx acks the message; what else is answered, and what fails, has it come again by the
    topic's back-off. docs/push.md says what a receiver gets.
    """


@push.command("set", short_help="Push the messages of a group to a URL, or change how.")
@topic_argument()
@group_argument
@click.option("--url", metavar="URL", help="Where messages are POSTed to.")
@click.option(
    "--secret-file", metavar="FILE", help="Sign with the secrets in FILE (- is the input), one in a line: whsec_..."
)
@click.option("--new-secret", is_flag=True, help="Make a secret, and print it: it is not shown again.")
@click.option("--keep-secrets", is_flag=True, help="Those of before sign as well, until secrets are set without this.")
@click.option("--concurrency", metavar="N", type=int, help="Requests at once, by each node.  [default: 10]")
@click.option("--request-timeout", type=DURATION, help="How long a receiver may take to answer.  [default: 30s]")
@common_options
def set_(topic: str, name: str, secret_file: str | None, new_secret: bool, keep_secrets: bool, **options: Any) -> None:
    """Have the messages of a group of TOPIC pushed to a URL, or change how; what is not named stays.

    \b
      sandctl group push set orders shop --url https://shop.example/hooks/orders --new-secret
      sandctl group push set orders shop --concurrency 20 --request-timeout 10s
      sandctl group push set orders shop --new-secret --keep-secrets

    The group need not be there yet. Its rate and what it has in flight over all nodes is bounded by `group limit`.
    """
    from sandq.client import new_push_secret

    if secret_file is not None and new_secret:
        raise click.UsageError("--new-secret goes without --secret-file")
    given = {option: value for option, value in options.items() if value is not None}
    made = new_push_secret() if new_secret else None
    if made is not None:
        given["secrets"] = [made]
    elif secret_file is not None:
        given["secrets"] = _read_secrets(secret_file)
    if keep_secrets:
        given["keep_secrets"] = True
    if not given:
        raise click.UsageError("nothing to change: give --url, or what else is to change")

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.set_push(topic, name, **given)

    found = run(work)
    record = {"group": name, "topic": topic, **found}
    if made is not None:
        record["secret"] = made
    done(f"group {name} of {topic} is pushed to {found.get('url')}", record)
    if made is not None and settings().output == "table":
        say(f"its new secret, which is not shown again: {made}")


@push.command("show", short_help="Show how a group is pushed, on each node.")
@topic_argument()
@group_argument
@common_options
def show(topic: str, name: str) -> None:
    """Show how the messages of a group of TOPIC are pushed, and how that goes on each node.

    \b
      sandctl group push show orders shop

    STATE: pushing; waiting, while the receiver fails at everything and is left alone; probing, with one message at a
    time after that; looking, for the address of the URL's name.
    """
    from sandq.errors import NotFound

    found = next((row for row in _pushes(topic) if row["group"] == name), None)
    if found is None:
        raise NotFound(f"group {name!r} of topic {topic!r} is not pushed")
    show_one(found)


@push.command("list")
@topic_argument()
@limit_option
@common_options
def list_(topic: str, limit: int | None) -> None:
    """List the groups of TOPIC that are pushed.

    \b
      sandctl group push list orders
    """
    show_rows(_pushes(topic), _COLUMNS, limit)


@push.command("remove", short_help="Stop pushing the messages of a group.")
@topic_argument()
@group_argument
@common_options
def remove(topic: str, name: str) -> None:
    """Push the messages of a group of TOPIC no more; the group stays, with its place.

    \b
      sandctl group push remove orders shop

    Requests that are under way have ten seconds to end.
    """

    async def work(client: Client) -> None:
        await client.admin.remove_push(topic, name)

    run(work)
    done(f"group {name} of {topic} is not pushed", {"group": name, "topic": topic, "url": None})


def push_of(pushes: list[dict[str, Any]], group: str) -> dict[str, Any]:
    """What `group show` tells of the push of a group; nothing when it has none."""
    found = next((row for row in pushes if row["group"] == group), None)
    if found is None:
        return {}
    if settings().output != "table":
        return {"push": found}
    error = f"; last error: {found['error']}" if found["error"] else ""
    return {"push": f"{found['url']} ({found['state']}{error})"}


def _pushes(topic: str) -> list[dict[str, Any]]:
    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.admin.pushes(topic)

    return [_readable(row) for row in run(work)]


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """With instants as text."""
    return {**_timed(row), "nodes": [_timed(node) for node in row["nodes"]]}


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    from sandq.model.times import format_instant

    at_ms = row.get("error_ms")
    found = {key: value for key, value in row.items() if key != "error_ms"}
    return {**found, "error_at": None if at_ms is None else format_instant(at_ms)}


def _read_secrets(file: str) -> list[str]:
    try:
        if file == "-":
            text = sys.stdin.read(SECRET_FILE_BYTES)
        else:
            with open(file, encoding="utf-8") as opened:
                text = opened.read(SECRET_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--secret-file {file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    found = text.split()
    if not found:
        raise click.UsageError(f"--secret-file {file}: there is no secret in it")
    return found
