"""Requests of consumers: subscriptions, single leases, and what becomes of leases."""

from __future__ import annotations

from sandq.protocol.requests import Ack, Credit, Extend, Lease, Nack, Subscribe, Unsubscribe
from sandq.server.handlers.routes import handled, submitted

ROUTES = (
    handled(Subscribe, lambda at, request_id, request: at.subscriptions.subscribe(request_id, request)),
    handled(Unsubscribe, lambda at, request_id, request: at.subscriptions.unsubscribe(request_id, request)),
    handled(Credit, lambda at, request_id, request: at.subscriptions.add_credit(request)),
    handled(Lease, lambda at, request_id, request: at.subscriptions.lease(request_id, request)),
    submitted(Ack, lambda at, request, done: at.broker.settle(request, at.caller, done)),
    submitted(Nack, lambda at, request, done: at.broker.settle(request, at.caller, done)),
    submitted(Extend, lambda at, request, done: at.broker.settle(request, at.caller, done)),
)
