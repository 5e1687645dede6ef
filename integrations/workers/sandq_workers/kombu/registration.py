"""Registers the transport: after `pip install sandq-workers`, kombu knows URLs that begin with `sandq://`.

kombu has no entry points for transports. It loads the entry points of the group `kombu.serializers` when its module of
serializers is imported, which every use of kombu or Celery does, and calls `register(name, *SERIALIZER)` with each
(ADR 60).
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT: Final = "sandq_workers.kombu.transport:Transport"
"""The transport, which kombu imports when a URL first needs it."""

TRANSPORT_ALIASES["sandq"] = TRANSPORT

SERIALIZER: Final = (None, None, "application/x-sandq-transport")
"""The serializer that the entry point has to name: one that neither encodes nor decodes."""
