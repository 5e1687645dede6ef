"""`sandctl kv`: the keys of a compacted topic. `watch` is in `sandctl.commands.kv_watch`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandctl.commands.kv_watch import watch
from sandctl.options.common import common_options, run
from sandctl.options.names import topic_argument
from sandctl.options.payload import as_json, headers_of, open_source, whole
from sandctl.options.times import DURATION, VERSION, limit_option, raw
from sandctl.output.records import entry_record, key_cell, key_name, key_record, value_cell, when, without_long_value
from sandctl.output.results import done, say, show_one, show_rows, show_stream
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, Entries, Entry

F = TypeVar("F", bound=Callable[..., Any])

EXIT_FAILED = 1

_stale_option = click.option(
    "--stale", is_flag=True, help="Ask any replica. It may be behind; standard error says by how much at most."
)


@click.group()
def kv() -> None:
    """Read, put, delete, list and watch the keys of a compacted topic.

    \b
      sandctl topic create config --kind compacted
      sandctl kv put config theme dark
      sandctl kv get config theme

    Each write has a VERSION: 26 characters that identify it.
    """


@kv.command(short_help="Show value, version and headers of keys.")
@topic_argument()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--raw", "only_value", is_flag=True, help="Print only the value of one KEY, as plain bytes.")
@_stale_option
@common_options
def get(topic: str, keys: tuple[str, ...], only_value: bool, stale: bool) -> None:
    """Show value, version, headers and expiry of keys of TOPIC.

    \b
      sandctl kv get config theme
      sandctl kv get config theme language -o jsonl
      sandctl kv get config logo --raw > logo.png

    With -o json, one KEY prints an object, several print an array. Standard error lists the keys that have no value,
    and the exit code is then 1.
    """
    if only_value and (len(keys) > 1 or settings().output != "table"):
        raise click.UsageError("--raw needs exactly one KEY and cannot be used with --output")
    names = [os.fsencode(key) for key in keys]

    async def work(client: Client) -> Entries:
        return await client.kv(topic).get_many(names, consistency=_consistency(stale))

    found = run(work)
    entries = [entry for entry in found if entry is not None]
    if only_value:
        for entry in entries:
            sys.stdout.buffer.write(entry.value)
            sys.stdout.buffer.flush()
    elif len(keys) > 1:
        _show_entries(entries)
    elif entries:
        record = entry_record(entries[0])
        show_one(without_long_value(record) if settings().output == "table" else record)
    if stale:
        _say_age(found.stale_ms)
    missing = [name for name, entry in zip(names, found, strict=True) if entry is None]
    for name in missing:
        say(f"sandctl: no value: {key_name(name)}", err=True)
    if missing:
        click.get_current_context().exit(EXIT_FAILED)


def _value_options(command: F) -> F:
    for option in reversed(
        (
            topic_argument(),
            click.argument("key"),
            click.argument("value", required=False),
            click.option(
                "--file", "-f", "path", metavar="FILE|-", help="Read the value from a file; - is standard input."
            ),
            click.option("--ttl", type=DURATION, help="Delete the value after this time.  [default: the topic's]"),
            click.option(
                "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header. May be given several times."
            ),
            click.option("--json", "is_json", is_flag=True, help="VALUE is JSON: check it, and show it as JSON."),
        )
    ):
        command = option(command)
    return command


@kv.command(short_help="Put a value, whatever value the key has.")
@_value_options
@common_options
def put(
    topic: str,
    key: str,
    value: str | None,
    path: str | None,
    ttl: timedelta | None,
    headers: tuple[str, ...],
    is_json: bool,
) -> None:
    """Put VALUE under KEY in TOPIC, even if KEY has a value, and print the version.

    \b
      sandctl kv put config theme dark
      sandctl kv put config logo --file logo.png --header type=image/png
      sandctl kv put sessions ada "logged in" --ttl 30m
      sandctl kv put config limits '{"most": 5}' --json
    """
    data, more = _payload(value, path), headers_of(headers)
    if is_json:
        data, more = as_json(data, more)
    _written(key, run(lambda client: client.kv(topic).put(os.fsencode(key), data, ttl=ttl, headers=more)))


@kv.command(short_help="Put a value if the key has the expected version.")
@_value_options
@click.option("--version", type=VERSION, metavar="VERSION", help="Only if KEY has this version.")
@click.option("--absent", is_flag=True, help="Only if KEY has no value.")
@common_options
def cas(
    topic: str,
    key: str,
    value: str | None,
    path: str | None,
    ttl: timedelta | None,
    headers: tuple[str, ...],
    is_json: bool,
    version: str | None,
    absent: bool,
) -> None:
    """Put VALUE under KEY in TOPIC if KEY has the expected version, or no value. Print the new version.

    \b
      sandctl kv cas config theme light --version 01HN7K2B6R0000000001000000
      sandctl kv cas locks door ada --absent --ttl 1m

    If not, nothing is written, standard error names the current version, and the exit code is 1.
    """
    if (version is None) is not absent:
        raise click.UsageError("say what is expected: either --version VERSION or --absent")
    data, more = _payload(value, path), headers_of(headers)
    if is_json:
        data, more = as_json(data, more)

    async def work(client: Client) -> str:
        return await client.kv(topic).cas(os.fsencode(key), data, expected=version, ttl=ttl, headers=more)

    _written(key, run(work))


@kv.command(short_help="Delete keys and print the version of each deletion.")
@topic_argument()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--version", type=VERSION, metavar="VERSION", help="Only if KEY has this version. Needs exactly one KEY.")
@common_options
def delete(topic: str, keys: tuple[str, ...], version: str | None) -> None:
    """Delete keys of TOPIC and print the version of each deletion. Deleting a key without a value is no error.

    \b
      sandctl kv delete config theme language
      sandctl kv delete config theme --version 01HN7K2B6R0000000001000000
    """
    if version is not None and len(keys) > 1:
        raise click.UsageError("--version needs exactly one KEY")
    names = list(dict.fromkeys(os.fsencode(key) for key in keys))

    async def work(client: Client) -> list[str]:
        found = client.kv(topic)
        if version is not None:
            return [await found.delete(names[0], expected=version)]
        return await found.put_many([(name, None) for name in names])

    versions = run(work)
    if settings().output == "table":
        for name, deletion in zip(names, versions, strict=True):
            say(f"deleted {key_name(name)} ({deletion})")
        return
    rows = [{**key_record("key", name), "version": one} for name, one in zip(names, versions, strict=True)]
    if len(rows) == 1:
        show_one(rows[0])
    else:
        show_rows(rows, {})


@kv.command(short_help="List the keys that have a value, in order.")
@topic_argument()
@click.option("--prefix", metavar="TEXT", help="Only keys that begin with this.")
@click.option("--start", metavar="KEY", help="Keys from this one on.")
@click.option("--stop", metavar="KEY", help="Keys before this one.")
@click.option("--keys-only", is_flag=True, help="Omit values and headers.")
@_stale_option
@limit_option
@common_options
def scan(
    topic: str,
    prefix: str | None,
    start: str | None,
    stop: str | None,
    keys_only: bool,
    stale: bool,
    limit: int | None,
) -> None:
    """List the keys of TOPIC that have a value, in order, from all its partitions.

    \b
      sandctl kv scan config
      sandctl kv scan users --prefix customer- --keys-only --limit all
      sandctl kv scan users --start a --stop n -o jsonl
    """
    if prefix is not None and not (start is None is stop):
        raise click.UsageError("--prefix cannot be used with --start or --stop")
    columns: dict[str, Any] = _COLUMNS if not keys_only else {name: _COLUMNS[name] for name in ("KEY", "VERSION")}

    async def work(client: Client) -> None:
        rows = client.kv(topic).scan(
            prefix=raw(prefix),
            start=raw(start),
            stop=raw(stop),
            limit=None if limit is None else limit + 1,
            consistency=_consistency(stale),
        )
        await show_stream(rows, lambda entry: entry_record(entry, value=not keys_only), columns, limit)
        if stale:
            _say_age(rows.stale_ms)

    run(work)


kv.add_command(watch)

_COLUMNS: dict[str, Callable[[Any], object]] = {
    "KEY": lambda entry: key_cell(entry.key),
    "VERSION": lambda entry: entry.version,
    "EXPIRES": lambda entry: when(entry.expires_ms),
    "VALUE": lambda entry: value_cell(entry.value),
}


def _show_entries(entries: Sequence[Entry]) -> None:
    if settings().output == "table":
        rows = [{name: cell(entry) for name, cell in _COLUMNS.items()} for entry in entries]
        if rows:
            show_rows(rows, {name: name for name in _COLUMNS})
    else:
        show_rows([entry_record(entry) for entry in entries], {})


def _say_age(stale_ms: int) -> None:
    click.echo(f"sandctl: state of {stale_ms} ms ago, or later", err=True)


def _consistency(stale: bool) -> str:
    return "stale" if stale else "linearizable"


def _payload(value: str | None, path: str | None) -> bytes:
    if (value is None) is (path is None):
        raise click.UsageError("give the value: either VALUE or --file FILE (- is standard input)")
    if value is not None:
        return os.fsencode(value)
    with open_source(path, needed=True) as source:
        return whole(source)


def _written(key: str, version: str) -> None:
    done(version, {**key_record("key", os.fsencode(key)), "version": version})
