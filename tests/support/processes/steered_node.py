"""`python -m tests.support.processes.steered_node`: run a node that dies in the middle of a job, and prints elections.

The node reads the file `kills.json` of its working directory: a list of `[kind, done]`. When an unfinished job of the
first `kind` has handled `done` messages, the node removes the pair from the list and kills itself.

The node prints `asks to lead group N` when it asks the other voters for a pre-vote, and `stands for group N` when a
majority has agreed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sandq.cli import main
from sandq.partition.jobs.job import RUNNING
from sandq.partition.jobs.jobs import Jobs
from sandq.raft.elections import Election

KILLS = "kills.json"


def write_kills(directory: Path, kills: list[tuple[str, int]]) -> None:
    """Write the planned kills, (kind of job, messages handled), for the node in this directory.

    The file is replaced atomically, so each read list is complete."""
    new = directory / f"{KILLS}.new"
    new.write_text(json.dumps(kills))
    new.replace(directory / KILLS)


def read_kills(directory: Path) -> list[tuple[str, int]]:
    """Return the kills that are left."""
    file = directory / KILLS
    return [(kind, done) for kind, done in json.loads(file.read_text())] if file.exists() else []


def _die_at_steps() -> None:
    run = Jobs.run

    def dies(self: Jobs, *args: Any) -> None:
        run(self, *args)
        kills = read_kills(Path.cwd())
        if kills and any(
            job.state == RUNNING and job.kind == kills[0][0] and job.done >= kills[0][1] for job in self._jobs.values()
        ):
            write_kills(Path.cwd(), kills[1:])
            os.kill(os.getpid(), signal.SIGKILL)

    Jobs.run = dies  # type: ignore[assignment, method-assign]


def _print_elections() -> None:
    ask, call = Election._ask, Election._call

    def print_event(election: Election, event: str) -> None:
        print(f"{event} group {election._transport._number}", file=sys.stderr, flush=True)

    def asks(self: Election, *args: Any) -> bool:
        is_alone = ask(self, *args)
        print_event(self, "asks to lead")
        return is_alone

    def stands(self: Election, **named: Any) -> None:
        print_event(self, "stands for")
        call(self, **named)

    Election._ask = asks  # type: ignore[assignment, method-assign]
    Election._call = stands  # type: ignore[method-assign]


if __name__ == "__main__":
    _die_at_steps()
    _print_elections()
    main()
