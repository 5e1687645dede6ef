"""Measure the cost of TLS for a node: the same load without it and with it."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.driver import measure as load
from benchmarks.driver import node_with
from benchmarks.process import Meter, data_directory
from benchmarks.produce import PARTITIONS, TOPIC, WINDOWS, links
from benchmarks.result import Goal, Measured, Row, Setting
from benchmarks.wire import CA_VARIABLE
from sandq.tools.certs import make_ca, make_node

NODE_ID = "node1"
SIZE, CONNECTIONS = 100, 16
NAMES = CA_VARIABLE, "SANDQ_CA"
TURNS = 7
PERCENT, US = "% more CPU", "us more"
Settings = dict[str, str]


@contextlib.contextmanager
def certified(setting: Setting) -> Iterator[Settings]:
    """The TLS settings of a node; all connections inside the block trust it."""
    with data_directory(setting.where) as directory:
        ca = make_ca(directory).certificate
        pair = make_node(NODE_ID, [], directory, directory)
        os.environ.update(dict.fromkeys(NAMES, str(ca)))
        try:
            files = {"CERT_FILE": str(pair.certificate), "KEY_FILE": str(pair.key), "PEER": "off", "HTTP": "off"}
            yield {f"TLS__{name}": value for name, value in files.items()}
        finally:
            for name in NAMES:
                del os.environ[name]


def batches(setting: Setting, settings: Settings) -> Measured:
    """Run the load of the row `produce_100` with these settings of the node."""
    count = setting.count(1200, 60)
    with node_with(setting, TOPIC, PARTITIONS, node_settings=settings) as node:
        to = links([node.port], CONNECTIONS, PARTITIONS)
        return load(node.metered, "produce", links=to, size=SIZE, count=count, window=WINDOWS[SIZE])


def awaited(setting: Setting) -> Measured:
    """Run the row small_produce alternately without TLS and with it, on one node that accepts both. Other work on the
    machine, or the way the node was started, matters more than TLS. Reports the median."""
    count = setting.count(1_000, 50)
    more_us: list[float] = []
    with certified(setting) as settings:
        both = settings | {"TLS__CLIENT": "accept"}
        with node_with(setting, TOPIC, PARTITIONS, node_settings=both) as node:

            def once() -> Measured:
                return load(node.metered, "small_produce", address=node.address, messages=count, clients=1)

            for number in range(setting.count(TURNS, 1)):
                with contextlib.ExitStack() as stack:
                    if number % 2:  # alternate, so that neither kind is always first
                        found = once()
                    stack.enter_context(trusting_nobody())
                    plain = once()
                if not number % 2:
                    found = once()
                assert plain.cpu_us is not None and found.cpu_us is not None
                more_us.append(found.cpu_us - plain.cpu_us)
    found.value = statistics.median(more_us)
    found.details |= {"least": min(more_us), "most": max(more_us)}
    return found


@contextlib.contextmanager
def trusting_nobody() -> Iterator[None]:
    """Connect without TLS inside the block."""
    kept = {name: os.environ.pop(name) for name in NAMES}
    try:
        yield
    finally:
        os.environ.update(kept)


def beside(setting: Setting) -> Measured:
    """Return how much more CPU batches cost the node with TLS."""
    plain = batches(setting, {})
    with certified(setting) as settings:
        found = batches(setting, settings)
    assert plain.cpu_us is not None and found.cpu_us is not None
    found.details |= {"plain CPU us": plain.cpu_us, "plain per s": plain.value, "TLS per s": found.value}
    found.value = 100 * (found.cpu_us - plain.cpu_us) / plain.cpu_us
    return found


def handshakes(setting: Setting) -> Measured:
    """Open connections with a TLS handshake and close them; return the node's cost for each."""
    count = setting.count(1_000, 50)
    with certified(setting) as settings, node_with(setting, TOPIC, PARTITIONS, node_settings=settings) as node:
        context = ssl.create_default_context(cafile=Path(os.environ[CA_VARIABLE]))
        meter = Meter(node.metered)
        for _ in range(count):
            with (
                socket.create_connection(("127.0.0.1", node.port)) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1"),
            ):
                pass
        cpu_us = meter.cpu_s() * 1e6 / count
    return Measured(count, cpu_us, cpu_us)


ROWS = (
    Row(
        "tls_produce_100",
        "tls",
        f"batches of {SIZE} x 100 B, {CONNECTIONS} connections, {WINDOWS[SIZE]} in flight on each",
        beside,
        PERCENT,
        Goal(40, PERCENT, at_least=False),
    ),
    Row(
        "tls_small_produce",
        "tls",
        "await client.produce(...), one client",
        awaited,
        US,
        Goal(30, US, at_least=False),
        driver="client",
    ),
    Row("tls_handshake", "tls", "connect, shake hands, and go", handshakes, "us"),
)
