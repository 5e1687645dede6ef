"""Notes of unfinished replays in an archive, so that a compaction does not merge their files.

    PATH/_replays/....json      the write id, and the files

The write id of a replay depends on its files, and the numbers of its chunks on the order of their rows. If a compaction
merged the files before a failed replay is repeated, the repetition would be a new write, and send all messages again.
Notes are valid for a week, because after a week the brokers have forgotten the replay anyway.
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
    """Keep a note of a replay during the block; delete it if the block succeeds.

    There is no note if the archive has no list of files, because then it is never compacted, or if writing fails.
    """
    name = hashlib.sha256(write_id.encode()).hexdigest()[:32]
    note = f"{path.rstrip('/')}/{REPLAYS}/{name}.json"
    if not at.names(f"{path}/{FILES}"):
        yield
        return
    try:
        at.put(note, json.dumps({"write_id": write_id, "files": [*files]}))
    except Exception as error:  # any Java exception, or an OSError
        log.warning("%s cannot be written, so a compaction will not wait for this replay: %s", note, first_line(error))
        yield
        return
    yield
    at.delete(note)


def check_replays(at: SparkDirectories, path: str, files: Set[str]) -> None:
    """Raise InvalidRequest if an unfinished replay reads some of these files."""
    for name in at.names(f"{path}/{REPLAYS}"):
        note = f"{path}/{REPLAYS}/{name}"
        if not name.endswith(".json") or name.startswith("."):
            continue
        content = json.loads(at.text(note))
        until_ms = at.status(note).getModificationTime() + REMEMBERED_MS
        if time.time() * 1000 < until_ms and not files.isdisjoint(content["files"]):
            raise InvalidRequest(
                f"{path}: the replay {content['write_id']} of these files has not ended; after a compaction it would "
                f"send messages twice. Run it again until it has ended, or delete {note} if you will never run it again"
            )
