"""The request for the lateness objective of the node that receives it.

SLO    [what it tells]     a map: docs/protocol.md has its members
"""

from __future__ import annotations

from sandq.protocol.frames import Type
from sandq.protocol.request import Request


class Slo(Request, type=Type.SLO):
    """Return the lateness of the node's deliveries and its objective, the start of the measurement, and the clock
    used."""
