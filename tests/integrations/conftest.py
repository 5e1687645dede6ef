from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.processes.node import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node in a process. Tests use prefixes of their own.

    In the end, close the connections that kombu keeps for later. Their clients would look for the node for ever, in
    pauses of random length. So they would change the results of tests that expect certain random numbers."""
    before = set(threading.enumerate())
    node = NodeProcess(tmp_path_factory.mktemp("node"))
    node.start()
    yield node
    from kombu import pools
    from sandq_workers import clients

    pools.reset()
    clients.close_all()
    node.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "sandq-client"]


@pytest.fixture(autouse=True)
def own_tasks() -> Iterator[None]:
    """Forget the tasks of a test's application in the end. Celery would give them to other applications."""
    from celery import _state

    before = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers.intersection_update(before)
