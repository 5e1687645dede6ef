"""The configuration of an embedded node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandq.model.config import NodeConfig, load_config
from sandq.model.errors import InvalidRequest
from sandq.storage import identity
from sandq.storage.files import RealFiles

Listen = bool | Mapping[str, str]
"""The ports that an embedded node opens: none, those of the configuration, or these: "client", "http", "sql"."""

PORTS: Final = ("client", "http", "sql")
_GRACE: Final = "5s"
_SEGMENT: Final = "4MiB"
"""A new file of the log is filled with zeros, which takes a quarter of a second for the 64 MiB of a server."""


def config_of(data: str | os.PathLike[str], listen: Listen, file: str | os.PathLike[str] | None) -> NodeConfig:
    """Return the configuration of an embedded node: the file, if one is given, without cluster and ports.

    A directory that has data keeps the id of its node. The environment is not read, because it is the program's. Raises
    InvalidRequest, StartupError (ConfigError, Corruption)."""
    directory = Path(data).absolute()
    settings = {
        "NODE__DATA_DIR": str(directory),
        # Without peers, the node is alone, and has no port for other nodes.
        "CLUSTER__MEMBERSHIP": "static",
        "CLUSTER__BOOTSTRAP": "true",
        **_ports(listen),
    }
    if file is None:
        settings |= {"STORAGE__SEGMENT_BYTES": _SEGMENT, "SHUTDOWN_GRACE": _GRACE}
    own = identity.load(RealFiles(directory)) if directory.is_dir() else None
    if own is not None:
        settings["NODE__ID"] = own.node
    return load_config(
        None if file is None else Path(file), {f"SANDQ_{name}": value for name, value in settings.items()}
    )


def _ports(listen: Listen) -> dict[str, str]:
    if listen is True:
        return {}
    if listen is False:
        return {"LISTEN__HTTP": "none", "LISTEN__SQL": "none"}
    if not isinstance(listen, Mapping) or not listen.keys() <= set(PORTS) or "client" not in listen:
        raise InvalidRequest(
            'listen: True, or a mapping of ports to addresses, like {"client": "127.0.0.1:7170", "http": '
            f'"127.0.0.1:2108"}}, is expected; "client" is required, and the ports are {", ".join(PORTS)}'
        )
    return {f"LISTEN__{name.upper()}": str(listen.get(name, "none")) for name in PORTS}
