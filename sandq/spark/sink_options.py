"""The options of the sink, as Spark hands them over: text by name, in any case.

sandq.bootstrap.servers   "host:port,host:port"; 127.0.0.1:7170
topic                     where all rows go; without it, the column `topic` says so row by row
onConflict                ignore (default) | replace | reject: rows whose unique_key is taken
writeId                   batch only: a name; writing again under it stores what is not stored yet
onChangedRows             error (default) | again: what is done when a task that is run again has other rows
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandq.client.options import DEFAULT_SERVER, parse_server
from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.names import check_name
from sandq.protocol.requests import IGNORE, REJECT, REPLACE

SERVERS: Final = "sandq.bootstrap.servers"
OPTIONS: Final = (SERVERS, "topic", "onConflict", "writeId", "onChangedRows")
OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark itself takes from a stream's options, and hands over as well."""
WRITE_ID_CHARS: Final = 249
_BY_LOWER: Final = {name.lower(): name for name in OPTIONS}
_SHOWN_CHARS: Final = 80
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

    def check_stream(self) -> None:
        """InvalidSetting when there is something that only a batch can do."""
        if self.write_id is not None:
            _refuse(["writeId: it is for batches; a stream is known by its checkpoint"])


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write. InvalidSetting names every mistake."""
    mistakes: list[str] = []
    texts: dict[str, str] = {}
    for given, text in options.items():
        name = _BY_LOWER.get(given.lower())
        if name is None and given.lower() not in OF_SPARK:
            mistakes.append(_unknown(given))
        elif name in texts:
            mistakes.append(f"{name}: it is given twice, in different case")
        elif name is not None:
            texts[name] = text.strip()
    servers, topic, write_id = texts.get(SERVERS, DEFAULT_SERVER).split(","), texts.get("topic"), texts.get("writeId")
    servers = [server.strip() for server in servers]
    try:
        for server in servers:
            parse_server(server)
    except InvalidRequest as error:
        mistakes.append(f"{SERVERS}: {error.message}")
    try:
        if topic is not None:
            check_name("topic", topic)
    except InvalidRequest as error:
        mistakes.append(f"topic: {error.message}")
    if write_id is not None and not 1 <= len(write_id) <= WRITE_ID_CHARS:
        mistakes.append(f"writeId: 1..{WRITE_ID_CHARS} characters are expected, not {len(write_id)}")
    on_conflict = _choice("onConflict", texts, _ON_CONFLICT, mistakes)
    again = _choice("onChangedRows", texts, _ON_CHANGED_ROWS, mistakes)
    _refuse(mistakes)
    return SinkOptions(tuple(servers), topic, on_conflict, write_id, bool(again))


def _choice(name: str, texts: Mapping[str, str], choices: Mapping[str, int], mistakes: list[str]) -> int:
    """What is chosen; the first is the default."""
    default = next(iter(choices))
    text = texts.get(name, default).lower()
    if text not in choices:
        mistakes.append(f"{name}: one of {', '.join(choices)} is expected, not {_shown(texts[name])!r}")
    return choices.get(text, choices[default])


def _refuse(mistakes: list[str]) -> None:
    if mistakes:
        raise InvalidSetting("sandq sink: " + "; ".join(mistakes))


def _unknown(given: str) -> str:
    if given.lower() == "path":
        return "path: nothing is written to a path; call save() or start() without one, and name the topic with topic"
    shown = _shown(given)
    if given.lower().startswith("kafka."):
        return f"{shown}: that is an option of Kafka's sink; the brokers are named with {SERVERS}"
    close = difflib.get_close_matches(given.lower(), _BY_LOWER, n=1)
    if not close:
        # sandq.topic, or servers alone
        close = [name for name in _BY_LOWER if name in given.lower() or (len(given) > 3 and given.lower() in name)]
    hint = f"did you mean {_BY_LOWER[close[0]]}?" if close else f"there are {', '.join(OPTIONS)}"
    return f"{shown}: no such option; {hint}"


def _shown(value: str) -> str:
    return value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "..."
