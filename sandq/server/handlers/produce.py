"""Requests that store messages."""

from __future__ import annotations

from sandq.protocol.requests import Produce
from sandq.server.handlers.routes import framed

ROUTES = (framed(Produce, lambda at, frame: at.produces.add(frame)),)
