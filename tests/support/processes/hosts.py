"""Provide several hosts on one machine: network namespaces on a bridge. Packets between hosts can be dropped.

The hosts belong to the process that creates them and to its children, and end with these processes. Put `IN_A_NETWORK`
before the command of the creating process. The network of the machine does not change."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

IN_A_NETWORK = ("unshare", "--net", *(() if os.getuid() == 0 else ("--map-root-user",)))
_SUBNET = "10.77.0"
_NOBODY = "02:00:00:00:00:99"


def can_be_made() -> bool:
    """Return whether this user on this machine may create networks."""
    try:
        made = subprocess.run([*IN_A_NETWORK, "ip", "link", "add", "bridge", "type", "bridge"], capture_output=True)
    except FileNotFoundError:
        return False
    return made.returncode == 0


class Hosts:
    """Hosts with these names, and this process's own host, on one bridge."""

    def __init__(self, names: Sequence[str]) -> None:
        self.addresses = {name: f"{_SUBNET}.{number}" for number, name in enumerate(names, 1)}
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        _ip("link set lo up")
        _ip("link add bridge type bridge")
        _ip(f"address add {_SUBNET}.254/24 dev bridge")
        _ip("link set bridge up")
        for number, name in enumerate(names):
            self._add(name, f"port{number}")

    def _add(self, name: str, port: str) -> None:
        # `cat` holds the network namespace open until its input ends, so the host outlives its nodes.
        host = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._hosts[name] = host
        assert host.stdin is not None and host.stdout is not None
        host.stdin.write(b"\n")
        host.stdin.flush()
        host.stdout.readline()  # `cat` has replied, so the network namespace exists
        _ip(f"link add {port} type veth peer name eth0 netns {host.pid}")
        _ip(f"link set {port} master bridge up")
        self._on(name, "link set lo up")
        self._on(name, f"address add {self.addresses[name]}/24 dev eth0")
        self._on(name, "link set eth0 up")

    def launcher(self, name: str) -> tuple[str, ...]:
        """Return the launcher that runs a command on a host."""
        return "nsenter", f"--net=/proc/{self._hosts[name].pid}/ns/net"

    def cut(self, sender: str, receiver: str) -> None:
        """Drop all packets from the sender to the receiver from now on, silently. The other direction still works."""
        self._on(sender, f"neighbour replace {self.addresses[receiver]} lladdr {_NOBODY} nud permanent dev eth0")

    def heal(self, sender: str, receiver: str) -> None:
        self._on(sender, f"neighbour delete {self.addresses[receiver]} dev eth0")

    def close(self) -> None:
        for host in self._hosts.values():
            host.communicate()

    def _on(self, name: str, what: str) -> None:
        subprocess.run([*self.launcher(name), "ip", *what.split()], check=True)


def _ip(what: str) -> None:
    subprocess.run(["ip", *what.split()], check=True)
