"""`sandctl`: the commands, their common options, exit codes.

Exit codes: 0 fine, 1 the request failed, 2 wrong usage, 3 no server can be reached, 130 interrupted (Ctrl-C).
A command is imported only when it is called, and heavy modules only when it runs, so that `--help` and shell completion
are fast.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from sandctl.lazy import Later, LazyGroup
from sandctl.options.common import CannotConnect, common_options
from sandctl.output.escaping import lines

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CANNOT_CONNECT = 3
EXIT_INTERRUPTED = 130


class Root(LazyGroup):
    """The top command: prints an error as a line on standard error and sets the exit code."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> None:
        extra["standalone_mode"] = False
        if sys.stdout is None:  # the parent process has closed the stream: no process reads the output
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        try:
            code = self._run(args, prog_name or "sandctl", extra)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        sys.exit(code)

    def _run(self, args: Sequence[str] | None, prog_name: str, extra: dict[str, Any]) -> int:
        try:
            result = super().main(args, prog_name, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            text = io.StringIO()
            error.show(text)
            click.echo(lines(text.getvalue()), err=True, nl=False)
            return error.exit_code
        except click.Abort:
            return EXIT_INTERRUPTED
        except OSError as error:
            _forget_output()
            if error.errno == errno.EPIPE:
                return EXIT_FAILED  # the reader of our output has gone: exit quietly
            return _failed(f"{error.filename or ''}: {error.strerror}".lstrip(": "))
        except CannotConnect as error:
            _failed(error.message)
            return EXIT_CANNOT_CONNECT
        except Exception as error:
            from sandq.errors import InvalidRequest, SandqError

            if not isinstance(error, SandqError):
                raise
            failed = _failed(error.message, getattr(error, "__notes__", ()))
            # An invalid request is wrong usage, no matter whether sandctl, the client or a node found the error.
            return EXIT_USAGE if isinstance(error, InvalidRequest) and not _is_no_usage(error) else failed
        return result if isinstance(result, int) else 0


_NO_USAGE = ("sandq.backup.errors", "sandq.spark.jobs.schedule", "sandq.spark.jobs.chart")
"""Modules whose errors are no wrong usage: a file has wrong content, or a package is missing."""


def _is_no_usage(error: Exception) -> bool:
    return any(kind.__module__ in _NO_USAGE for kind in type(error).__mro__)


def _forget_output() -> None:
    """Discard buffered output, so that the exit does not try to write it again."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _failed(message: str, notes: Sequence[str] = ()) -> int:
    click.echo(f"sandctl: {lines(message)}", err=True)
    for note in notes:
        click.echo(f"  {lines(note)}", err=True)
    return EXIT_FAILED


def _version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from sandq import __version__

        click.echo(f"sandctl {__version__}")
        context.exit()


COMMANDS = {
    "topic": Later(
        "sandctl.commands.topics",
        "topic",
        "Create, list, show, change, purge and delete topics.",
    ),
    "produce": Later("sandctl.commands.produce", "produce", "Send messages, and print the offset of each."),
    "consume": Later(
        "sandctl.commands.consume",
        "consume",
        "Print and ack messages of topics, as a consumer of a group.",
    ),
    "kv": Later("sandctl.commands.kv", "kv", "Read, put, delete, list and watch the keys of a compacted topic."),
    "message": Later(
        "sandctl.commands.messages", "message", "Look at stored messages; cancel, move and update pending ones."
    ),
    "schedule": Later(
        "sandctl.commands.schedules",
        "schedule",
        "Send recurring messages by cron expression or interval.",
    ),
    "group": Later("sandctl.commands.groups", "group", "Show, seek, change, limit, push, pause and delete groups."),
    "limit": Later(
        "sandctl.commands.limits",
        "limit",
        "Set, show, list and delete limits of several topics.",
    ),
    "tenant": Later(
        "sandctl.commands.tenants",
        "tenant",
        "Show tenants of a fair topic; change weights and limits.",
    ),
    "lease": Later(
        "sandctl.commands.leases",
        "lease",
        "Lease messages of a group; ack, nack, extend, give back.",
    ),
    "dead": Later("sandctl.commands.dead", "dead", "Show dead letters, deliver them again, or purge them."),
    "cluster": Later(
        "sandctl.commands.cluster",
        "cluster",
        "Show the cluster, form it, drain and remove nodes.",
    ),
    "partition": Later(
        "sandctl.commands.partition",
        "partition",
        "List and skip entries that stopped partitions.",
    ),
    "backup": Later(
        "sandctl.commands.backup",
        "backup",
        "Create, list, verify, restore and schedule backups.",
    ),
    "whoami": Later("sandctl.commands.login", "whoami", "Show your identity on the cluster and your rights."),
    "login": Later("sandctl.commands.login", "login", "Save a token for these servers."),
    "logout": Later("sandctl.commands.login", "logout", "Delete the saved token of these servers."),
    "context": Later("sandctl.commands.context", "context", "Store clusters by name: servers, TLS, token."),
    "token": Later("sandctl.commands.tokens", "token", "Create, list, rotate and revoke tokens."),
    "identity": Later(
        "sandctl.commands.identities",
        "identity",
        "Show, create, change and delete identities.",
    ),
    "role": Later("sandctl.commands.roles", "role", "List, create and delete roles, which are lists of grants."),
    "audit": Later(
        "sandctl.commands.audit",
        "audit",
        "Show the audit log: who did what, and which requests were refused.",
    ),
    "debug": Later(
        "sandctl.commands.debug",
        "debug",
        "Inspect a node: stacks, stalls, queues, logs.",
    ),
    "slo": Later("sandctl.commands.slo", "slo", "Compare lateness of messages with the objective."),
    "sql": Later("sandctl.commands.sql", "sql", "Query messages, keys, groups and the cluster in MySQL's SQL."),
    "doctor": Later(
        "sandctl.commands.doctor",
        "doctor",
        "Find problems of the cluster, and say what to do.",
    ),
    "pipeline": Later(
        "sandctl.pipeline",
        "pipeline",
        "Archive, replay, query and forecast messages with Spark.",
    ),
    "bench": Later("sandctl.commands.bench", "bench", "Measure how fast and how punctual a cluster is."),
    "completion": Later(
        "sandctl.commands.completion", "completion", "Print the script that makes a shell complete sandctl's words."
    ),
}


@click.command(
    "sandctl",
    cls=Root,
    later=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Documentation: run `sandq docs` where a node is installed, or open /help/ at the HTTP port of a node.",
)
@common_options
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def main() -> None:
    """Manage a sandq cluster: topics, messages, consumer groups, dead letters and the cluster itself.

    \b
      sandctl topic create orders
      sandctl produce orders "call Ada" --in 2h
      sandctl consume orders --group desk --follow

    Times: a DURATION is "90s", "5m", "3d" or seconds. An INSTANT is "2030-01-31T08:00:00Z", epoch milliseconds, or a
    signed duration from now: "+5m", "-1h". Lists show up to 100 rows; --limit changes that.

    Exit codes: 0 success, 1 the request failed, 2 wrong usage, 3 no server can be reached, 130 interrupted.
    """
