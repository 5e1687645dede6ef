"""Tests of the TLS options: before and after the command, in the environment, and their errors."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sandctl.main import main
from sandctl.options.common import common_options, tls_in_environment
from sandctl.settings import settings
from tests.support.certificates import Authority


@click.group()
@common_options
def root() -> None: ...


@root.command()
@common_options
def show() -> None:
    found = settings()
    before = dict(os.environ)
    with tls_in_environment():
        said = {name: os.environ.get(f"SANDQ_{name}") for name in ("TLS", "CA", "CERT", "KEY")}
    assert dict(os.environ) == before
    click.echo(f"{found.tls} {sorted(found.files.items())} {said}")


@pytest.mark.parametrize(
    ("args", "environ", "said"),
    [
        (["show"], {}, "None [] {'TLS': None, 'CA': None, 'CERT': None, 'KEY': None}"),
        (["--tls", "show"], {}, "True [] {'TLS': '1', 'CA': None, 'CERT': None, 'KEY': None}"),
        (["show", "--ca", "a"], {}, "None [('ca', 'a')] {'TLS': None, 'CA': 'a', 'CERT': None, 'KEY': None}"),
        (
            ["--ca", "b", "show", "--cert", "c", "--cert-key", "k"],
            {"SANDCTL_CA": "x"},
            "None [('ca', 'b'), ('cert', 'c'), ('key', 'k')] {'TLS': None, 'CA': 'b', 'CERT': 'c', 'KEY': 'k'}",
        ),
        (["show"], {"SANDCTL_CA": "x"}, "None [] {'TLS': None, 'CA': 'x', 'CERT': None, 'KEY': None}"),
        (["show", "--no-tls"], {"SANDCTL_CA": "x"}, "False [] {'TLS': None, 'CA': None, 'CERT': None, 'KEY': None}"),
    ],
)
def test_tls_options_work_in_each_position(args: list[str], environ: dict[str, str], said: str) -> None:
    result = CliRunner(env=environ).invoke(root, args)
    assert result.exit_code == 0 and result.output.strip() == said, result.output


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    ada = Authority(tmp_path).client("ada")
    for args, said in (
        (["--ca", str(tmp_path / "no.pem")], "no.pem: No such file"),
        (["--cert-key", str(ada.key)], "give cert, too"),
    ):
        result = CliRunner().invoke(main, ["-s", "127.0.0.1:1", "topic", "list", *args])
        assert result.exit_code != 0 and said in result.output, result.output
