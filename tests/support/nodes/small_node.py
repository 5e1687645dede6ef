"""Provide configurations of nodes for tests, with free ports and small segments."""

from __future__ import annotations

from pathlib import Path

from sandq.model.config import NodeConfig, load_config


def small_config(directory: Path, **environ: str) -> NodeConfig:
    """`environ`: settings as in environment variables, but without the prefix SANDQ_."""
    settings = {
        "NODE__DATA_DIR": str(directory / "data"),
        "LISTEN__CLIENT": "127.0.0.1:0",
        "LISTEN__HTTP": "none",
        "CLUSTER__MEMBERSHIP": "static",
        "STORAGE__SEGMENT_BYTES": "1048576",
        **environ,
    }
    return load_config(None, {f"SANDQ_{name}": value for name, value in settings.items()})
