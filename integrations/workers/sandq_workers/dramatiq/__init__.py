"""Dramatiq on sandq.

    broker = SandqBroker("sandq://127.0.0.1:7170")
    broker.add_middleware(Results(backend=SandqResults("sandq://127.0.0.1:7170")))
    dramatiq.set_broker(broker)

`SandqRateLimits` is a backend of Dramatiq's rate limiters, barriers and locks.
"""

from __future__ import annotations

from sandq_workers.dramatiq.broker import SandqBroker as SandqBroker
from sandq_workers.dramatiq.rate_limits import SandqRateLimits as SandqRateLimits
from sandq_workers.dramatiq.results import SandqResults as SandqResults
