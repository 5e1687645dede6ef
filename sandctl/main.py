"""`sandctl`: the commands, their common options, exit codes.

Exit codes: 0 fine, 1 the request failed, 2 wrong usage, 3 no server can be reached, 130 interrupted (Ctrl-C).
Nothing heavy is imported before a command runs, so that `--help` and shell completion answer at once.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from sandctl.cluster import cluster
from sandctl.consume import consume
from sandctl.dead import dead
from sandctl.groups import group
from sandctl.messages import message
from sandctl.produce import produce
from sandctl.settings import CannotConnect, common_options
from sandctl.topics import topic

EXIT_FAILED = 1
EXIT_CANNOT_CONNECT = 3
EXIT_INTERRUPTED = 130


class Root(click.Group):
    """The top command: turns what commands raise into a line on stderr and an exit code."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> None:
        extra["standalone_mode"] = False
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
            error.show()
            return error.exit_code
        except click.Abort:
            return EXIT_INTERRUPTED
        except OSError as error:
            if error.errno != errno.EPIPE:
                return _failed(f"{error.filename or ''}: {error.strerror}".lstrip(": "))
            # Whoever read our output has gone: quietly. What is still buffered must not be written at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return EXIT_FAILED
        except CannotConnect as error:
            _failed(error.message)
            return EXIT_CANNOT_CONNECT
        except Exception as error:
            from sandq.errors import SandqError

            if not isinstance(error, SandqError):
                raise
            return _failed(error.message, getattr(error, "__notes__", ()))
        return result if isinstance(result, int) else 0


def _failed(message: str, notes: Sequence[str] = ()) -> int:
    click.echo(f"sandctl: {message}", err=True)
    for note in notes:
        click.echo(f"  {note}", err=True)
    return EXIT_FAILED


def _version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from sandq import __version__

        click.echo(f"sandctl {__version__}")
        context.exit()


@click.command("sandctl", cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@common_options
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def main() -> None:
    """Talk to a sandq cluster: topics, messages, consumer groups, dead letters, the cluster itself.

    Times: a DURATION is "90s", "5m", "3d" or seconds; an INSTANT is "2030-01-31T08:00:00Z", epoch milliseconds, or a
    duration from now with its sign: "+5m", "-1h". Lists show 100 rows at most, unless --limit says otherwise.

    Exit codes: 0 fine, 1 the request failed, 2 wrong usage, 3 no server can be reached.
    """


for command in (topic, produce, consume, message, group, dead, cluster):
    main.add_command(command)
