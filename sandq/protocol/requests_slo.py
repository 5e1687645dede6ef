"""The request about the lateness objective of the node that is asked.

SLO    [what it tells]     a map: docs/protocol.md has its members
"""

from __future__ import annotations

from sandq.protocol.frames import Type
from sandq.protocol.request import Request


class Slo(Request, type=Type.SLO):
    """How late deliveries of the node were, beside what it promises; since when, and by what clock."""
