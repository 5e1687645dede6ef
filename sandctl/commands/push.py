"""`sandctl group push`: groups whose messages the cluster posts to a URL."""

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
    """Send the messages of a group to a URL, each at its time.

    Each request is signed. A 2xx status acks the message. After any other status or a failure, the request is repeated
    after the topic's back-off. docs/push.md describes the requests.
    """


@push.command("set", short_help="Push the messages of a group to a URL, or change the settings.")
@topic_argument()
@group_argument
@click.option("--url", metavar="URL", help="URL of the receiver.")
@click.option(
    "--targets",
    type=click.Choice(["group", "message"]),
    help="message: each message goes to its own URL (produce --push-url).  [default: group]",
)
@click.option(
    "--secret-file", metavar="FILE", help="Sign with the secrets in FILE (- is standard input), one per line: whsec_..."
)
@click.option("--new-secret", is_flag=True, help="Create a secret and print it; it is not shown again.")
@click.option(
    "--keep-secrets",
    is_flag=True,
    help="Also sign with the previous secrets, until you set secrets without this option.",
)
@click.option(
    "--header-file",
    metavar="FILE",
    help="Send the headers in FILE (- is standard input), one per line: NAME=VALUE. An empty file removes them.",
)
@click.option(
    "--concurrency", metavar="N", type=int, help="Requests in flight at a time from each node.  [default: 10]"
)
@click.option("--request-timeout", type=DURATION, help="Time limit for the receiver's response.  [default: 30s]")
@click.option(
    "--on-429",
    type=click.Choice(["snooze", "pause_tenant", "pause_group", "pause_limit"]),
    help="After 429 with Retry-After: snooze the message only, or also pause others.  [default: snooze]",
)
@common_options
def set_(
    topic: str,
    name: str,
    secret_file: str | None,
    new_secret: bool,
    keep_secrets: bool,
    header_file: str | None,
    **options: Any,
) -> None:
    """Push the messages of a group of TOPIC to a URL, or change the settings. Settings that you do not give stay as
    they are.

    \b
      sandctl group push set orders shop --url https://shop.example/hooks/orders --new-secret
      sandctl group push set orders shop --concurrency 20 --request-timeout 10s
      sandctl group push set orders shop --new-secret --keep-secrets
      sandctl group push set calls http --targets message --new-secret

    The group need not exist yet. `group limit` limits its rate and its messages in flight over all nodes.
    """
    from sandq.client import new_push_secret

    if secret_file is not None and new_secret:
        raise click.UsageError("--new-secret and --secret-file cannot be used together")
    given = {option: value for option, value in options.items() if value is not None}
    made = new_push_secret() if new_secret else None
    if made is not None:
        given["secrets"] = [made]
    elif secret_file is not None:
        given["secrets"] = _read_secrets(secret_file)
    if header_file is not None:
        given["headers"] = _read_headers(header_file)
    if keep_secrets:
        given["keep_secrets"] = True
    if not given:
        raise click.UsageError("nothing to change: give --url or another setting")

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.set_push(topic, name, **given)

    found = run(work)
    record = {"group": name, "topic": topic, **found}
    if made is not None:
        record["secret"] = made
    done(f"group {name} of {topic} is pushed to {_receiver(found)}", record)
    if made is not None and settings().output == "table":
        say(f"its new secret, which is not shown again: {made}")


@push.command("show", short_help="Show how a group is pushed, on each node.")
@topic_argument()
@group_argument
@common_options
def show(topic: str, name: str) -> None:
    """Show the push settings of a group of TOPIC, and its state on each node.

    \b
      sandctl group push show orders shop

    STATE is one of: pushing; waiting (the receiver fails every request, so the node pauses); probing (after the pause,
    one message at a time); looking (the node resolves the host name of the URL).
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
    """Stop pushing the messages of a group of TOPIC. The group and its position stay.

    \b
      sandctl group push remove orders shop

    Requests in flight get ten seconds to finish.
    """

    async def work(client: Client) -> None:
        await client.admin.remove_push(topic, name)

    run(work)
    done(f"group {name} of {topic} is not pushed", {"group": name, "topic": topic, "url": None})


def push_of(pushes: list[dict[str, Any]], group: str) -> dict[str, Any]:
    """Return what `group show` prints about the push of a group. Empty if the group is not pushed."""
    found = next((row for row in pushes if row["group"] == group), None)
    if found is None:
        return {}
    if settings().output != "table":
        return {"push": found}
    error = f"; last error: {found['error']}" if found["error"] else ""
    return {"push": f"{_receiver(found)} ({found['state']}{error})"}


def _pushes(topic: str) -> list[dict[str, Any]]:
    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.admin.pushes(topic)

    return [_readable(row) for row in run(work)]


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with instants as text."""
    url = _receiver(row) if settings().output == "table" else row["url"]
    return {**_timed(row), "url": url, "nodes": [_timed(node) for node in row["nodes"]]}


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    from sandq.model.times import format_instant

    at_ms = row.get("error_ms")
    found = {key: value for key, value in row.items() if key != "error_ms"}
    return {**found, "error_at": None if at_ms is None else format_instant(at_ms)}


def _receiver(push: Mapping[str, Any]) -> str:
    """Return the URL of a push, or that messages have their own."""
    return push.get("url") or "the URLs of its messages"


def _read(option: str, file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read(SECRET_FILE_BYTES)
        with open(file, encoding="utf-8") as opened:
            return opened.read(SECRET_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{option} {file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def _read_secrets(file: str) -> list[str]:
    found = _read("--secret-file", file).split()
    if not found:
        raise click.UsageError(f"--secret-file {file}: there is no secret in it")
    return found


def _read_headers(file: str) -> dict[str, str]:
    """Return the headers in a file. No error shows a value, because it may be secret."""
    found = {}
    for number, line in enumerate(_read("--header-file", file).splitlines(), 1):
        name, separator, value = line.partition("=")
        if not separator and line.strip():
            raise click.UsageError(f"--header-file {file}: line {number}: NAME=VALUE is expected")
        if separator:
            found[name.strip()] = value.strip()
    return found
