"""Replays of an archive that have not ended: noted beside its files, so that these stay as they are for them.

    PATH/_replays/....json      the write id, and the files

A replay is known to the brokers by the files that it reads, and its rows by their order there. Were the files put
together before one that failed is run again, it would be another one, and send again what it had sent. After a week
the brokers have forgotten it anyway.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Final

from sandq.model.errors import InvalidRequest
from sandq.spark.jobs.archive_log import FILES
from sandq.spark.jobs.directories import SparkDirectories
from sandq.spark.jobs.session import first_line

log = logging.getLogger("sandq.spark")

REPLAYS: Final = "_replays"
REMEMBERED_MS: Final = 7 * 86_400_000


@contextmanager
def noted(at: SparkDirectories, path: str, write_id: str, files: Sequence[str]) -> Iterator[None]:
    """Have a replay noted until it ends well. Where nothing can be written, it goes on without; so it does where there
    is no list of files, which is not compacted."""
    name = hashlib.sha256(write_id.encode()).hexdigest()[:32]
    place = f"{path.rstrip('/')}/{REPLAYS}/{name}.json"
    if not at.names(f"{path}/{FILES}"):
        yield
        return
    try:
        at.put(place, json.dumps({"write_id": write_id, "files": [*files]}))
    except Exception as error:  # Java's, or of this machine
        log.warning("%s cannot be written, so that a compaction does not wait for this: %s", place, first_line(error))
        yield
        return
    yield
    at.delete(place)


def check_replays(at: SparkDirectories, path: str, files: Set[str]) -> None:
    """InvalidRequest when a replay that has not ended reads some of these."""
    for name in at.names(f"{path}/{REPLAYS}"):
        place = f"{path}/{REPLAYS}/{name}"
        if not name.endswith(".json") or name.startswith("."):
            continue
        told = json.loads(at.text(place))
        until_ms = at.status(place).getModificationTime() + REMEMBERED_MS
        if time.time() * 1000 < until_ms and not files.isdisjoint(told["files"]):
            raise InvalidRequest(
                f"{path}: the replay {told['write_id']} of these files has not ended, and would send twice what it has "
                f"sent. Run it again until it has, or delete {place} if it never will be"
            )
