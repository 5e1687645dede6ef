"""The transport of kombu, which Celery uses: `broker="sandq://127.0.0.1:7170"`.

`registration` makes the transport known to kombu. `transport` has the classes that kombu calls; they use `envelope` (a
message of kombu as a message of sandq), `bindings` (exchanges), `session` (one client for each process) and `feed` (a
subscription).
"""

from __future__ import annotations

from sandq_workers.kombu import registration as registration
