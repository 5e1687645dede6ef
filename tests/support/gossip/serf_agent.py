"""Run a real Serf agent in a process of its own, which ends with the test."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from sandq.membership.serf_rpc import SerfRpc
from sandq.model.config_types import Address
from sandq.model.errors import Unavailable
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

SERF = shutil.which("serf")
_LOOK_S = 0.02


def new_key() -> str:
    """Return a new key for AES-256, in the format of `encrypt_key`."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def _write_secret(path: Path, content: Any) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file)


class SerfAgent:
    """A Serf agent in a process.

    `gossip`, `rpc`: the addresses at which it listens. `encrypt_key`: key of the cluster in base64; None for plain
    text. `keyring`: several keys that may be changed while the agent runs, instead of `encrypt_key`; the first one
    encrypts. `rpc_auth`: token for the RPC; None accepts all clients. `profile`: "local" or "lan", its timing."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        tags: Mapping[str, str] | None = None,
        encrypt_key: str | None = None,
        keyring: Sequence[str] | None = None,
        rpc_auth: str | None = None,
        profile: str = "local",
    ) -> None:
        self.name = name
        self.gossip = Address("127.0.0.1", free_port())
        self.rpc = Address("127.0.0.1", free_port())
        self.rpc_auth = rpc_auth
        self._config = directory / f"{name}.json"
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        config: dict[str, Any] = {
            "node_name": name,
            "bind": str(self.gossip),
            "rpc_addr": str(self.rpc),
            "tags": dict(tags or {}),
            "profile": profile,
        }
        # Serf accepts these two settings only from a file.
        config |= {"encrypt_key": encrypt_key} if encrypt_key is not None else {}
        config |= {"rpc_auth": rpc_auth} if rpc_auth is not None else {}
        if keyring is not None:
            config["keyring_file"] = str(directory / f"{name}.keys")
            _write_secret(directory / f"{name}.keys", list(keyring))
        _write_secret(self._config, config)

    async def start(self) -> None:
        """Start the process and wait until its RPC answers. May be called again after its end."""
        assert SERF is not None and self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it does not wait for anything
                [SERF, "agent", f"-config-file={self._config}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        with trio.fail_after(PATIENCE_S):
            while not await self._answers():
                assert self._process.poll() is None, f"the agent {self.name} has ended:\n{self.output()}"
                await trio.sleep(_LOOK_S)

    async def _answers(self) -> bool:
        try:
            async with await SerfRpc.open(self.rpc, self.rpc_auth):
                return True
        except Unavailable:
            return False

    async def members(self) -> dict[str, dict[str, Any]]:
        """Return the members by name: {"addr", "tags", "status", ...}, as Serf's own client prints them."""
        listed = json.loads(await self._command("members", "-format=json"))
        return {member["name"]: member for member in listed["members"]}

    async def until(self, name: str, status: str, **tags: str) -> dict[str, Any]:
        """Wait until the agent lists the member with this status and at least these tags, and return it."""
        return await self.until_listed(
            name, lambda found: found["status"] == status and tags.items() <= found["tags"].items()
        )

    async def until_listed(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the agent lists the member and it meets the condition, and return it."""
        listed: dict[str, dict[str, Any]] = {}
        with trio.move_on_after(PATIENCE_S):
            while True:
                listed = await self.members()
                if name in listed and condition(listed[name]):
                    return listed[name]
                await trio.sleep(_LOOK_S)
        raise AssertionError(f"{name} did not reach the expected state in {PATIENCE_S:g} s; {self.name} lists {listed}")

    async def join(self, seed: Address) -> None:
        await self._command("join", str(seed))

    async def set_tags(self, **tags: str) -> None:
        await self._command("tags", *[f"-set={name}={value}" for name, value in tags.items()])

    async def force_leave(self, name: str) -> None:
        """Tell the agent that this member has left, as `serf force-leave` does."""
        await self._command("force-leave", name)

    async def event(self, name: str) -> None:
        await self._command("event", name, "payload")

    async def query(self, name: str) -> None:
        """Send a query and wait until the time for answers is over."""
        await self._command("query", "-timeout=200ms", name, "payload")

    async def change_keys(self, what: str, key: str) -> None:
        """Change the keys of all agents. `action`: "install", "use" or "remove".

        Serf reports an error if other members do not answer, so the exit code is ignored."""
        await self._command("keys", f"-{what}={key}", fails=True)

    def stall(self) -> None:
        """Stop the process until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def reload(self) -> None:
        """Let the agent read its configuration again."""
        self._signal(signal.SIGHUP)

    async def leave(self) -> None:
        """Let the agent leave the cluster. It notifies the other agents and ends."""
        self._signal(signal.SIGINT)
        await self._ended()

    async def kill(self) -> None:
        """Kill the agent, so that it ends without leaving the cluster."""
        self._signal(signal.SIGKILL)
        await self._ended()

    def close(self) -> None:
        """Kill the agent if it runs. Print its output, so that the report of a failed test contains it."""
        print(f"-- the agent {self.name} said:\n{self.output() if self._log.exists() else ''}")
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    async def _command(self, command: str, *arguments: str, fails: bool = False) -> bytes:
        auth = [] if self.rpc_auth is None else [f"-rpc-auth={self.rpc_auth}"]
        line = [SERF or "serf", command, f"-rpc-addr={self.rpc}", *auth, *arguments]
        done = await trio.run_process(line, capture_stdout=True, capture_stderr=True, check=False)
        assert fails or done.returncode == 0, f"serf {command}: {done.stdout!r} {done.stderr!r}"
        return done.stdout

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def _ended(self) -> None:
        assert self._process is not None
        await trio.to_thread.run_sync(self._process.wait, PATIENCE_S)
        self._process = None
