"""The last known gossip addresses of other members, in one small file. PERSISTED.

Body (envelope: small_file.py, magic "SANDQKNA", version 1), msgpack array of texts, "host:port".

The addresses help a node that reaches none of its seeds when it starts. Because they are only a hint, the node ignores
a damaged file.
"""

from __future__ import annotations

from collections.abc import Collection

from sandq.model.config_schema import Address
from sandq.model.errors import Corruption
from sandq.storage import small_file
from sandq.storage.files import Files

MAGIC = b"SANDQKNA"
VERSION = 1
NAME = "known-addresses"
ADDRESSES_MOST = 100


def load(files: Files, name: str = NAME) -> list[Address]:
    """Return the addresses. Empty if there is no file. Raise `Corruption` if the file is damaged."""
    if not files.exists(name):
        return []
    texts = small_file.decode(files.read(name), MAGIC, VERSION, name)
    try:
        return [Address.parse(text) for text in texts]
    except (TypeError, ValueError) as error:
        raise Corruption(f"{name} holds no addresses: {error}", file=name) from error


def save(files: Files, addresses: Collection[Address], name: str = NAME) -> None:
    """Replace the file, durably, by at most `ADDRESSES_MOST` of the addresses."""
    texts = [str(address) for address in sorted(addresses)[:ADDRESSES_MOST]]
    files.replace(name, small_file.encode(MAGIC, VERSION, texts))
