"""Read the examples of docs/protocol.md, by name."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Final

from sandq import protocol
from sandq.protocol.frames import Frame, FrameReader, Type
from sandq.protocol.request import REQUESTS, Request
from tests.support.documents import document

for module in pkgutil.iter_modules(protocol.__path__):  # a request is known once its module is imported
    importlib.import_module(f"{protocol.__name__}.{module.name}")

KINDS: Final = [kind for kind in Type if kind not in (Type.REPLY, Type.ERROR, Type.DELIVER)]
"""All types of requests."""
DOCUMENT: Final = document("protocol")
HEX: Final[dict[str, str]] = dict(re.findall(r"```hex ([a-z-]+)\n(.*?)```", DOCUMENT, re.DOTALL))


def decode(name: str) -> Frame:
    (frame,) = FrameReader().feed(bytes.fromhex(HEX[name]))
    return frame


def parsed(name: str) -> Request:
    """Return the request of an example."""
    frame = decode(name)
    return REQUESTS[frame[0]].parse(frame)


EXAMPLES: Final = [name for name in HEX if decode(name)[0] in REQUESTS]
"""Names of the examples that are requests."""
