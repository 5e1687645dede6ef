"""What TLS costs a node: the same load without it and with it, one after the other."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
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
PER_S = 400.0
"""Awaited requests, less than either way can do."""
PERCENT, US = "% more CPU", "us more"
Settings = dict[str, str]


@contextlib.contextmanager
def certified(setting: Setting) -> Iterator[Settings]:
    """What a node says then; whoever connects inside the block trusts it."""
    with data_directory(setting.where) as directory:
        ca = make_ca(directory).certificate
        pair = make_node(NODE_ID, [], directory, directory)
        names = CA_VARIABLE, "SANDQ_CA"
        os.environ.update(dict.fromkeys(names, str(ca)))
        try:
            files = {"CERT_FILE": str(pair.certificate), "KEY_FILE": str(pair.key), "PEER": "off", "HTTP": "off"}
            yield {f"TLS__{name}": value for name, value in files.items()}
        finally:
            for name in names:
                del os.environ[name]


def batches(setting: Setting, settings: Settings) -> Measured:
    """As the row produce_100."""
    count = setting.count(1200, 60)
    with node_with(setting, TOPIC, PARTITIONS, node_settings=settings) as node:
        to = links([node.port], CONNECTIONS, PARTITIONS)
        return load(node.metered, "produce", links=to, size=SIZE, count=count, window=WINDOWS[SIZE])


def awaited(setting: Setting, settings: Settings) -> Measured:
    """As the row small_produce, but as often a second with TLS as without: what a node does anyway, it does as often a
    second, too."""
    count = setting.count(4_000, 200)
    with node_with(setting, TOPIC, PARTITIONS, node_settings=settings) as node:
        return load(node.metered, "small_produce", address=node.address, messages=count, clients=1, per_s=PER_S)


def beside(measure: Callable[[Setting, Settings], Measured], in_percent: bool, setting: Setting) -> Measured:
    """What it costs the node more by TLS, of a message."""
    plain = measure(setting, {})
    with certified(setting) as settings:
        found = measure(setting, settings)
    assert plain.cpu_us is not None and found.cpu_us is not None
    found.details |= {"plain CPU us": plain.cpu_us, "plain per s": plain.value, "TLS per s": found.value}
    more_us = found.cpu_us - plain.cpu_us
    found.value = 100 * more_us / plain.cpu_us if in_percent else more_us
    return found


def handshakes(setting: Setting) -> Measured:
    """Connections that shake hands and end: what each costs the node."""
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
        f"batches of {SIZE} x 100 B, {CONNECTIONS} connections, {WINDOWS[SIZE]} on the way on each",
        partial(beside, batches, True),
        PERCENT,
        Goal(40, PERCENT, at_least=False),
    ),
    Row(
        "tls_small_produce",
        "tls",
        f"await client.produce(...), one client, {PER_S:.0f} a second",
        partial(beside, awaited, False),
        US,
        Goal(30, US, at_least=False),
        driver="client",
    ),
    Row("tls_handshake", "tls", "connect, shake hands, and go", handshakes, "us"),
)
