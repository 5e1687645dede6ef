"""Fuzz nodes for some minutes: python -m tests.support.fuzz --minutes 10 [--tokens] [--nodes 3] [--seed 1]

The exit code is 1, and the reason is printed, if a node ended by itself, did not restart, replied INTERNAL or logged an
error, or if replicas differ. Nodes and their logs are in --directory, which must not exist before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests.support.fuzz.nodes import Fuzz, one_node, three_nodes
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--tokens", action="store_true", help="callers show tokens, and are held to their rights")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--kill-every", type=float, default=15, metavar="SECONDS")
    parser.add_argument(
        "--host", default="127.0.0.1", help="a loopback address; three nodes take this and the next two"
    )
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="sandq-fuzz-")) / "nodes"
    print(f"seed {arguments.seed}, nodes in {directory}", flush=True)
    cluster = None
    if arguments.nodes == 1:
        nodes = one_node(directory, arguments.host, tokens=arguments.tokens)
    else:
        cluster = three_nodes(directory, arguments.host, tokens=arguments.tokens)
        nodes = [*cluster.nodes.values()]
    try:
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.wait_until_it_serves()
        fuzz = Fuzz(nodes, arguments.seed, replicas=len(nodes), tokens=arguments.tokens)

        async def run() -> None:
            await fuzz.prepare()
            await fuzz.run(arguments.minutes, None, connections=arguments.connections, kill_s=arguments.kill_every)
            for number in range(len(nodes)):
                await fuzz.kill(number)

        trio.run(run)
        compared = wait_until_compared(nodes) if cluster is not None else 0
        codes = [node.stop() for node in nodes]
        print(f"{fuzz.requests} requests, {fuzz.kills} kills, {compared} partitions compared, exit codes {codes}")
        print(dict(fuzz.codes.most_common()))
        faults = fuzz.faults()
        for fault in faults:
            print(f"FAULT {fault}")
        return 1 if faults or any(codes) else 0
    finally:
        for node in nodes:
            node.close()


def wait_until_compared(nodes: list[NodeProcess]) -> int:
    """Wait for new comparisons of replicas, two rounds of six partitions. Return the number of successful comparisons.

    Raises AssertionError if replicas differ."""
    before = {node: len(node.output()) for node in nodes}

    def compared() -> list[bool | None]:
        lines = [line for node in nodes for line in node.output()[before[node] :].splitlines()]
        said = [json.loads(line) for line in lines if '"replicas were compared"' in line]
        return [one.get("same") for one in said]

    wait_until(lambda: sum([one is not None for one in compared()]) >= 2 * 6)
    found = compared()
    if False in found:
        raise AssertionError(f"replicas differ: see the logs, within {PATIENCE_S:g} s")
    return found.count(True)


if __name__ == "__main__":
    sys.exit(main())
