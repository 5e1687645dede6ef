"""The `sandq` command: run a node, check a configuration."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import sandq


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="YAML file of this node."
)
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True)
@click.version_option(sandq.__version__, prog_name="sandq")
@click.pass_context
def main(context: click.Context, config_file: Path | None, log_format: str) -> None:
    """Run a sandq node until it is told to stop (SIGINT or SIGTERM).

    Without --config: one node, node1, with its data in ./sandq-data and the default ports. Any key can also be set
    by environment, for example SANDQ_LISTEN__CLIENT=127.0.0.1:7171.
    """
    if context.invoked_subcommand is None:
        with _errors():
            _serve(config_file, log_format)


@main.command("check-config")
@click.argument("config_file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
def check_config(config_file: Path) -> None:
    """Say whether FILE is a valid configuration, and everything that is wrong with it if not."""
    from sandq.model.config import load_config

    with _errors():
        config = load_config(config_file, os.environ)
        click.echo(f"{config_file}: fine (node {config.node.id}, data in {config.node.data_dir})")


def _serve(config_file: Path | None, log_format: str) -> None:
    import trio

    from sandq.model.config import load_config
    from sandq.node import SWITCH_INTERVAL_S, run_node

    config = load_config(config_file, os.environ)
    _set_up_logging(log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    async def serve() -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with run_node(config) as serving:
                click.echo(f"sandq {sandq.__version__}: node {config.node.id}, data in {serving.data_dir}")
                click.echo(f"clients: {serving.client_host}:{serving.client_port}")
                async for _ in signals:
                    click.echo("stopping")
                    break

    trio.run(serve)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    from sandq.model.errors import SandqError

    try:
        yield
    except SandqError as error:
        click.echo(f"sandq: {error.message}", err=True)
        sys.exit(1)
    except BaseExceptionGroup as group:
        ours, others = group.split(SandqError)
        if ours is None or others is not None:
            raise
        for leaf in _leaves(ours):
            click.echo(f"sandq: {leaf}", err=True)
        sys.exit(1)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _set_up_logging(log_format: str) -> None:
    import structlog

    if log_format == "auto":
        log_format = "text" if sys.stderr.isatty() else "json"
    renderer = structlog.dev.ConsoleRenderer() if log_format == "text" else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    main()
