"""`sandctl dead`: the dead letters of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm, need_yes, yes_option
from sandctl.options.names import group_option, topic_argument
from sandctl.options.targets import EXIT_FAILED
from sandctl.options.times import ID, Window, limit_option, newest_option, window_options
from sandctl.output.progress import Progress
from sandctl.output.records import CELL_CHARS, dead_record, key_cell, value_cell, when
from sandctl.output.results import counted, done, say, shortened, show_rows, show_stream
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, DeadLetter, DeadOutcome, JobResult

F = TypeVar("F", bound=Callable[..., Any])

REASONS = ("nacked", "lease_expired", "expired", "rejected", "undeliverable")


@click.group()
def dead() -> None:
    """Show dead letters, deliver them again, or purge them.

    A message is dead for a group when its last attempt failed (nacked), when the lease of that attempt ended without an
    ack (lease_expired), when no consumer leased it within its ttl (expired), or when a consumer rejected it (rejected).
    """


def _which_options(command: F) -> F:
    command = click.option(
        "--error", metavar="TEXT", help="Only those whose last error contains this text; case-sensitive."
    )(command)
    command = window_options("Dead")(command)
    command = click.option("--reason", type=click.Choice(REASONS), help="Only those with this reason.")(command)
    return topic_argument()(group_option(command))


def _ids_option(command: F) -> F:
    return click.option(
        "--id",
        "ids",
        metavar="ID",
        type=ID,
        multiple=True,
        help="This dead letter, whatever its reason; may be repeated.",
    )(command)


def _all_option(command: F) -> F:
    return click.option("--all", "everything", is_flag=True, help="Every dead letter of the group.")(command)


def _error_cell(row: DeadLetter) -> str | None:
    """Return the last error of a dead letter, and why the dead letter topic refused it."""
    if row.not_forwarded is None:
        return None if row.error is None else shortened(row.error, CELL_CHARS)
    error = shortened(row.error or "", CELL_CHARS // 2)
    return f"{error} (not forwarded: {shortened(row.not_forwarded, CELL_CHARS // 2)})".strip()


def _which(reason: str | None, error: str | None, window: Window) -> dict[str, Any]:
    """Return the given filters as the client takes them."""
    if error == "":
        raise click.UsageError("--error: text is expected; an empty text matches every error")
    named = {"reason": reason, "error": error}
    return {name: value for name, value in named.items() if value is not None} | window.arguments()


def _check_selection(ids: Sequence[str], which: dict[str, Any], everything: bool, others: dict[str, bool]) -> None:
    """Raise UsageError unless the dead letters are selected in one way: by --id, by filters, or by --all."""
    if not (ids or which or everything or others["--dry-run"]):
        filters = "--reason, --error, --key-prefix, --since, --until"
        raise click.UsageError(f"name the dead letters: --id, {filters}, or --all")
    if everything and which:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in which)
        raise click.UsageError(f"--all cannot be used with {names}: either every dead letter, or those that match")
    others = {"--all": everything, **others}
    given = [f"--{name.replace('_', '-')}" for name in which] + [name for name, is_given in others.items() if is_given]
    if ids and given:
        raise click.UsageError(f"--id names the letters: it goes without {', '.join(given)}")


@dead.command("list", short_help="List the dead letters of a group.")
@_which_options
@click.option("--values", is_flag=True, help="Also show values.")
@newest_option
@limit_option
@common_options
def list_(
    topic: str,
    group: str,
    reason: str | None,
    since: int | None,
    until: int | None,
    key_prefix: str | None,
    error: str | None,
    values: bool,
    newest: bool,
    limit: int | None,
) -> None:
    """List the dead letters of a group, and on standard error their number by reason.

    \b
      sandctl dead list orders --group billing
      sandctl dead list orders -g billing --reason nacked --values -o jsonl
      sandctl dead list orders -g billing --error "no stock" --key-prefix eu/ --since -1h

    LIFE is 1, and rises by 1 with each redrive. ATTEMPTS are the attempts of the last life. -o json and `message why
    ORDERS ID` show the attempts of all lives. With --values -o jsonl each line is valid input of `produce --jsonl`.
    """
    which = _which(reason, error, Window.of(since, until, key_prefix))
    columns: dict[str, Any] = {
        "ID": lambda row: row.id,
        "REASON": lambda row: row.reason,
        "LIFE": lambda row: row.life,
        "ATTEMPTS": lambda row: row.attempts,
        "DEAD SINCE": lambda row: when(row.dead_ms),
        "KEY": lambda row: key_cell(row.key),
        "UNIQUE KEY": lambda row: key_cell(row.unique_key),
        "BYTES": lambda row: row.size,
        "ERROR": _error_cell,
        **({"VALUE": lambda row: value_cell(row.value)} if values else {}),
    }

    async def work(client: Client) -> dict[str, int]:
        letters = client.dead(topic, group)
        counts = await letters.counts()
        asked = None if limit is None else limit + 1
        rows = letters.list(**which, limit=asked, values=values, newest=newest)
        await show_stream(rows, lambda row: dead_record(row, value=values), columns, limit)
        return counts

    counts = {name: count for name, count in run(work).items() if count}
    if counts:
        parts = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
        click.echo(f"{sum(counts.values()):,} dead in group {group}: {parts}", err=True)


@dead.command(short_help="Deliver dead letters to their group again.")
@_which_options
@_ids_option
@_all_option
@click.option("--rate", type=click.IntRange(1), metavar="N", help="At most this many messages per second.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@common_options
def redrive(
    topic: str,
    group: str,
    reason: str | None,
    since: int | None,
    until: int | None,
    key_prefix: str | None,
    error: str | None,
    ids: tuple[str, ...],
    everything: bool,
    rate: int | None,
    dry_run: bool,
) -> None:
    """Deliver dead letters to their group again, with all attempts available.

    \b
      sandctl dead redrive orders --group billing --reason nacked --since -1d
      sandctl dead redrive orders --group billing --all --rate 50
      sandctl dead redrive orders --group billing --error "no stock" --key-prefix eu/
      sandctl dead redrive orders --group billing --id 01HN7K2B6R0000000001000000

    Ctrl-C stops the command; what was redriven before stays redriven. If you name dead letters by --id, the outcome of
    each is printed, and the exit code is 1 unless all were redriven.
    """
    window = Window.of(since, until, key_prefix)
    window.check_prefixes()
    arguments = _which(reason, error, window)
    _check_selection(ids, arguments, everything, {"--rate": rate is not None, "--dry-run": dry_run})
    if ids:
        _show(run(lambda client: client.dead(topic, group).redrive_ids(ids)), "redriven")
        return

    async def work(client: Client) -> JobResult:
        letters = client.dead(topic, group)
        if dry_run:
            return await letters.redrive(**arguments, dry_run=True)
        with Progress("redriven") as progress:
            return await letters.redrive(**arguments, rate=rate, progress=progress)

    result = run(work, waits=not dry_run)
    if dry_run:
        _would(result, "redriven")
    else:
        _did(result, "redriven")


@dead.command()
@_which_options
@_ids_option
@_all_option
@click.option("--dry-run", is_flag=True, help="Only count them.")
@yes_option
@common_options
def purge(
    topic: str,
    group: str,
    reason: str | None,
    since: int | None,
    until: int | None,
    key_prefix: str | None,
    error: str | None,
    ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete dead letters of a group permanently.

    \b
      sandctl dead purge orders --group billing --reason expired --until -7d --dry-run
      sandctl dead purge orders --group billing --all --yes
      sandctl dead purge orders --group billing --id 01HN7K2B6R0000000001000000

    If you name dead letters by --id, the command does not ask; it prints the outcome of each, and the exit code is 1
    unless all were purged. Otherwise it asks before it deletes.
    """
    window = Window.of(since, until, key_prefix)
    window.check_prefixes()
    arguments = _which(reason, error, window)
    _check_selection(ids, arguments, everything, {"--dry-run": dry_run})
    if ids:
        _show(run(lambda client: client.dead(topic, group).purge_ids(ids)), "purged")
        return

    async def count(client: Client) -> JobResult:
        return await client.dead(topic, group).purge(**arguments, dry_run=True)

    if dry_run:
        _would(run(count), "purged")
        return
    total: int | None = None
    if not yes:
        need_yes("purging deletes dead letters permanently")
        matched = total = run(count).matched
        if not matched:
            done("no dead letters", {"matched": 0, "done": 0, "too_late": 0})
            return
        confirm(f"Delete {counted(matched, 'dead letter')} of group {group} for good?", "purged")

    async def work(client: Client) -> JobResult:
        with Progress("purged", total) as progress:
            return await client.dead(topic, group).purge(**arguments, progress=progress)

    _did(run(work, waits=True), "purged")


def _show(outcomes: Sequence[DeadOutcome], wanted: str) -> None:
    """Print a line for each outcome: completed ones on standard output, others on standard error with exit code 1."""
    if settings().output == "table":
        for one in outcomes:
            say(_sentence(one), err=one.outcome != wanted)
    else:
        shown = [one._asdict() for one in outcomes]
        show_rows([{name: value for name, value in row.items() if value is not None} for row in shown], {})
    if any(one.outcome != wanted for one in outcomes):
        click.get_current_context().exit(EXIT_FAILED)


def _sentence(one: DeadOutcome) -> str:
    if one.outcome == "not_dead":
        return f"{one.id}: not dead, it is {one.state}"
    if one.outcome == "not_found":
        return f"{one.id}: the group has no such dead letter"
    return f"{one.outcome} {one.id}"


def _would(result: JobResult, verb: str) -> None:
    done(f"{counted(result.matched, 'dead letter')} would be {verb}", {"matched": result.matched, "dry_run": True})


def _did(result: JobResult, verb: str) -> None:
    record = {"matched": result.matched, "done": result.done, "too_late": result.too_late}
    done(f"{verb} {result.done:,} of {counted(result.matched, 'dead letter')}", record)
