"""The options of the sink, as Spark hands them over: text by name, in any case.

sandq.bootstrap.servers   "host:port,host:port"
token, token_file         says who writes, or a file that every executor has; else SANDQ_TOKEN, SANDQ_TOKEN_FILE
insecure                  true: the token is sent in the clear to other machines, too
topic                     where all rows go; without it, the column `topic` says so row by row
onConflict                ignore | replace | reject: rows whose unique_key is taken
writeId                   batch only: a name; writing again under it stores what is not stored yet
onChangedRows             error | again: what is done when a task that is run again has other rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandq.model.errors import InvalidRequest
from sandq.model.names import check_name
from sandq.model.ports import DEFAULT_SERVER
from sandq.protocol.requests import IGNORE, REJECT, REPLACE
from sandq.spark.credentials import NOBODY, Credentials, credentials_of
from sandq.spark.credentials import OPTIONS as CREDENTIALS
from sandq.spark.option_texts import SERVERS, OptionTexts, Side, one_of, servers

OPTIONS: Final = (SERVERS, "topic", "onConflict", "writeId", "onChangedRows", *CREDENTIALS)
OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark itself takes from a stream's options, and hands over as well."""
WRITE_ID_CHARS: Final = 249
_SINK: Final = Side(
    "sink",
    OPTIONS,
    path="nothing is written to a path; call save() or start() without one, and name the topic with topic",
    of_spark=OF_SPARK,
)
_ON_CONFLICT: Final = {"ignore": IGNORE, "replace": REPLACE, "reject": REJECT}
_ON_CHANGED_ROWS: Final = {"error": False, "again": True}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write was asked for."""

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    topic: str | None = None
    on_conflict: int = IGNORE
    """As PRODUCE has it."""
    write_id: str | None = None
    again: bool = False
    """Whether changed rows are written again, instead of being an error."""
    who: Credentials = NOBODY

    def check_stream(self) -> None:
        """InvalidSetting when there is something that only a batch can do."""
        if self.write_id is not None:
            _SINK.refuse(["writeId: it is for batches; a stream is known by its checkpoint"])


DEFAULTS: Final = SinkOptions()


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write. InvalidSetting names every mistake."""
    texts = OptionTexts(options, _SINK)
    found = SinkOptions(
        servers=texts.one(SERVERS, servers, DEFAULTS.servers),
        topic=texts.one("topic", lambda text: check_name("topic", text), DEFAULTS.topic),
        write_id=texts.one("writeId", _write_id, DEFAULTS.write_id),
        on_conflict=texts.one("onConflict", one_of(_ON_CONFLICT), DEFAULTS.on_conflict),
        again=texts.one("onChangedRows", one_of(_ON_CHANGED_ROWS), DEFAULTS.again),
        who=credentials_of(texts),
    )
    _SINK.refuse(texts.mistakes)
    return found


def _write_id(text: str) -> str:
    if not 1 <= len(text) <= WRITE_ID_CHARS:
        raise InvalidRequest(f"1..{WRITE_ID_CHARS} characters are expected, not {len(text)}")
    return text
