"""Taskiq on sandq.

    broker = SandqBroker("sandq://127.0.0.1:7170").with_result_backend(SandqResultBackend("sandq://127.0.0.1:7170"))
    source = SandqScheduleSource(broker)

The schedules of the source are stored in the cluster, which sends their tasks: no `taskiq scheduler` has to run.
"""

from __future__ import annotations

from sandq_workers.taskiq.broker import SandqBroker as SandqBroker
from sandq_workers.taskiq.results import ResultIsMissingError as ResultIsMissingError
from sandq_workers.taskiq.results import SandqResultBackend as SandqResultBackend
from sandq_workers.taskiq.schedules import SandqScheduleSource as SandqScheduleSource
