"""Consumers: subscriptions, leases, acknowledgements, workers."""

from __future__ import annotations

from sandq.client.consumer.lease_api import SETTLE_ITEMS, are_elsewhere
from sandq.client.consumer.outgoing import Outgoing

__all__ = ["SETTLE_ITEMS", "Outgoing", "are_elsewhere"]
