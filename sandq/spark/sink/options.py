"""The options of the sink: texts by name, from Spark; the case of names does not matter.

sandq.bootstrap.servers   "host:port,host:port"
token, token_file         a token, or a file with one on every executor; by default SANDQ_TOKEN, SANDQ_TOKEN_FILE
insecure                  true: the token is sent to other machines without encryption, too
topic                     the topic of all rows; without it, the column `topic` names the topic of each row
onConflict                ignore | replace | reject: the reaction to rows whose unique_key is taken
writeId                   batches only: a name; writing again with the same name stores only the missing rows
onChangedRows             error | again: the reaction if a repeated task has different rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandq.model.errors import InvalidRequest
from sandq.model.names import check_name
from sandq.model.ports import DEFAULT_SERVER
from sandq.protocol.requests import IGNORE, REJECT, REPLACE
from sandq.spark.credentials import NO_CREDENTIALS, Credentials, credentials_of
from sandq.spark.credentials import OPTIONS as CREDENTIALS
from sandq.spark.option_texts import SERVERS, OptionTexts, Side, one_of, servers

OPTIONS: Final = (SERVERS, "topic", "onConflict", "writeId", "onChangedRows", *CREDENTIALS)
OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options of a stream, in lower case, that Spark uses itself and also passes on."""
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
    """The parsed options of a write."""

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    topic: str | None = None
    on_conflict: int = IGNORE
    """Reaction to a taken unique key, as a number of the request PRODUCE."""
    write_id: str | None = None
    again: bool = False
    """Option onChangedRows: if a repeated task has different rows than before, write all of them again.

    Otherwise raise ChangedRows."""
    credentials: Credentials = NO_CREDENTIALS

    def check_stream(self) -> None:
        """Raise InvalidSetting if an option is not allowed in a stream."""
        if self.write_id is not None:
            _SINK.refuse(["writeId: it is for batches; a stream is identified by its checkpoint"])


DEFAULTS: Final = SinkOptions()


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises InvalidSetting with all mistakes."""
    texts = OptionTexts(options, _SINK)
    found = SinkOptions(
        servers=texts.value(SERVERS, servers, DEFAULTS.servers),
        topic=texts.value("topic", lambda text: check_name("topic", text), DEFAULTS.topic),
        write_id=texts.value("writeId", _write_id, DEFAULTS.write_id),
        on_conflict=texts.value("onConflict", one_of(_ON_CONFLICT), DEFAULTS.on_conflict),
        again=texts.value("onChangedRows", one_of(_ON_CHANGED_ROWS), DEFAULTS.again),
        credentials=credentials_of(texts),
    )
    _SINK.refuse(texts.mistakes)
    return found


def _write_id(text: str) -> str:
    if not 1 <= len(text) <= WRITE_ID_CHARS:
        raise InvalidRequest(f"1..{WRITE_ID_CHARS} characters are expected, not {len(text)}")
    return text
