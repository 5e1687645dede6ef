"""A broker inside a test, whose time the test controls: see `docs/testing.md`.

    with sandq.testing.broker() as b, sandq.sync.connect(b.address) as client:
        client.produce("reminders", b"call Ada", delay="3d")
        b.advance("3d")

The broker is a whole node: the same protocol on a real socket, the same log and groups, but memory instead of a disk.
In an event loop, use `async with sandq.testing.broker() as b:` and `await b.advance("3d")`. There are pytest fixtures:
`pytest_plugins = ["sandq.testing.plugin"]`.
"""

from __future__ import annotations

from sandq.testing.brokers import START, AsyncBroker, Broker, Starting, broker

__all__ = ["START", "AsyncBroker", "Broker", "Starting", "broker"]
