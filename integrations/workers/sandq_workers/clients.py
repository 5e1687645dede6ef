"""One client of this process for each address, which everything that uses the address shares."""

from __future__ import annotations

import atexit
import os
import threading
from collections import Counter

from sandq.sync import Client
from sandq_workers.urls import Address

_clients: dict[Address, Client] = {}
_users: Counter[Address] = Counter()
_lock = threading.RLock()


def acquire(address: Address) -> Client:
    """Return the client of this process for an address; connect if there is none. Raises the errors of connecting."""
    with _lock:
        if address not in _clients:
            _clients[address] = address.connect("sandq-workers")
        _users[address] += 1
        return _clients[address]


def release(address: Address) -> None:
    """Close the client of an address if nothing uses it any more."""
    with _lock:
        _users[address] -= 1
        if _users[address] > 0:
            return
        del _users[address]
        client = _clients.pop(address, None)
    if client is not None:
        client.close()


def close_all() -> None:
    """Close all clients of this process."""
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
        _users.clear()
    for client in clients:
        client.close()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent process may hold the other one
    _clients.clear()
    _users.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_all)
