"""`sandq doctor`: check whether a node can run well on this machine, and say how to fix problems.

The command only reads, with one exception: to measure syncs, it writes a file that has no name in the file system.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandq.tools.doctor.check import Check, failed, ok, skipped
from sandq.tools.doctor.check_machine import check_clock, check_open_files, check_packages, check_python
from sandq.tools.running import printable

if TYPE_CHECKING:
    from sandq.model.config import NodeConfig

COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "bright_black"}


def examine(config_file: Path | None, environ: Mapping[str, str]) -> Iterator[Check]:
    """Do all checks one after another, and yield their results."""
    yield check_python()
    packages = list(check_packages())
    yield from packages
    if any(check.state == "failed" and "imported" in check.found for check in packages):
        yield skipped("everything else", "it needs these packages")
        return
    # Import these modules late, because they need the packages that were checked above.
    from sandq.model.config import load_config
    from sandq.model.errors import ConfigError

    try:
        config = load_config(config_file, environ)
    except ConfigError as error:
        for mistake in error.message.splitlines():
            yield failed("config", mistake, "correct it; docs/configuration.md has every key")
        yield skipped("everything else", "it depends on the configuration")
        return
    yield ok("config", f"{config_file or 'none: the defaults'} (node {config.node.id})")
    yield from _of_node(config, environ)


def _of_node(config: NodeConfig, environ: Mapping[str, str]) -> Iterator[Check]:
    from sandq.tools.doctor import check_disk, check_host
    from sandq.tools.doctor.check_data import DataDirectory
    from sandq.tools.doctor.check_ports import check_exposed, check_ports
    from sandq.tools.doctor.check_tls import check_tls

    data_dir = Path(config.node.data_dir).absolute()
    usable = check_disk.check_data_dir(data_dir)
    yield usable
    data = DataDirectory(data_dir, config.node.id)
    if usable.state == "ok":
        yield check_disk.check_file_system(data_dir)
        yield check_disk.check_space(
            data_dir, check_disk.needed_bytes(config), check_disk.least_bytes(config, data_dir)
        )
        yield from check_disk.check_syncs(data_dir, environ)
        yield from data.checks()
    yield from check_tls(config)
    yield from check_ports(config, data.store_uuid, data.is_running)
    yield from check_exposed(config)
    yield check_open_files(config.limits)
    yield check_host.check_memory(config.limits.memory_bytes)
    yield check_host.check_swap()
    yield check_host.check_stolen_time()
    yield check_clock(config.clock.max_drift_ms)
    yield check_host.check_clock_source()


def report(checks: Iterator[Check], *, as_json: bool, write: Callable[[str], None]) -> bool:
    """Write the results as they arrive. Return False if a check failed."""
    counts: Counter[str] = Counter()
    done: list[Check] = []
    for check in checks:
        counts[check.state] += 1
        done.append(check)
        if not as_json:
            for line in _lines(check):
                write(line)
    if as_json:
        rows = [check._asdict() for check in done]
        write(json.dumps({"checks": rows, "failed": counts["failed"], "warnings": counts["warning"]}, indent=2))
    else:
        write(_summary(counts))
    return not counts["failed"]


def _lines(check: Check) -> Iterator[str]:
    word = click.style(f"{check.state:<8}", fg=COLOURS[check.state])
    yield f"{word} {check.what:<16} {printable(check.found)}"
    if check.todo:
        yield f"{'':<8} {'':<16} -> {printable(check.todo)}"


def _summary(counts: Counter[str]) -> str:
    names = {"ok": "ok", "warning": "warnings", "failed": "failed", "skipped": "skipped"}
    return ", ".join(f"{counts[state]} {name}" for state, name in names.items() if counts[state])
