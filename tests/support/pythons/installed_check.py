"""Use the node and the client that are installed with this Python. This script needs no other file of the repository.

    python -I installed_check.py doctor                  versions and packages
    python -I installed_check.py write DATA FIRST COUNT     start a node, send it COUNT messages, kill it (SIGKILL)
    python -I installed_check.py read DATA COUNT            start a node, receive and ack COUNT messages, kill it

`read` prints the values, one per line, in the order of delivery. Every second message is delayed by a second."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
START_S = 120.0
DELAY = "1s"


def doctor() -> None:
    version = subprocess.run([BIN / "sandq", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    found = subprocess.run([BIN / "sandq", "doctor", "--json"], check=False, capture_output=True, text=True)
    checks = [check for check in json.loads(found.stdout)["checks"] if check["what"].startswith(("python", "package"))]
    wrong = [check for check in checks if check["state"] != "ok"]
    if wrong or len(checks) < 2:
        sys.exit(f"sandq doctor: {wrong or found.stdout}")
    import google_crc32c

    if google_crc32c.implementation != "c":
        sys.exit(f"checksums are computed by Python: google_crc32c.implementation is {google_crc32c.implementation!r}")
    print(version, "on Python", sys.version.split()[0])


@contextlib.contextmanager
def node(data: Path) -> Iterator[str]:
    """Run a node over a data directory, yield its address, and end it with SIGKILL."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    environ = os.environ | {
        "SANDQ_NODE__DATA_DIR": str(data),
        "SANDQ_LISTEN__CLIENT": f"{HOST}:{port}",
        "SANDQ_LISTEN__HTTP": "none",
        "SANDQ_LISTEN__PEER": f"{HOST}:0",
        "SANDQ_LISTEN__GOSSIP": f"{HOST}:0",
    }
    log = data.with_name(f"{data.name}.log")
    with log.open("ab") as out:
        process = subprocess.Popen([BIN / "sandq"], env=environ, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the node does not serve (exit code {process.returncode}):\n{log.read_text()}")
            time.sleep(0.05)
        yield f"{HOST}:{port}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def write(data: Path, first: int, count: int) -> None:
    import sandq.sync

    with node(data) as address, sandq.sync.connect(address) as client:
        if first == 0:
            client.admin.create_topic("walk")
        for number in range(first, first + count):
            client.produce("walk", b"%d" % number, delay=DELAY if number % 2 else None)


def read(data: Path, count: int) -> None:
    import sandq.sync

    with (
        node(data) as address,
        sandq.sync.connect(address) as client,
        client.subscribe("walk", group="walkers", credit=1) as subscription,
    ):
        messages = iter(subscription)
        for _ in range(count):
            message = next(messages)
            message.ack().wait()
            print(message.value.decode())


def main() -> None:
    match sys.argv[1:]:
        case ["doctor"]:
            doctor()
        case ["write", data, first, count]:
            write(Path(data), int(first), int(count))
        case ["read", data, count]:
            read(Path(data), int(count))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
