"""Msgpack maps as Go's agents write them: old raw types only, keys that are the names of Go's fields.

Keys and texts arrive as bytes. A key that this version does not know is a newer agent's and is ignored; nil, and an
optional key that is missing, is Go's zero value. What is read here came from the network: ProtocolError when it is
wrong, and no announced length makes room for more than has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

import msgpack

from sandq.model.config_schema import Address
from sandq.model.errors import InvalidSetting, ProtocolError

Fields = Mapping[bytes, Any]

U8_MAX: Final = 2**8 - 1
U16_MAX: Final = 2**16 - 1
U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1
NAME_BYTES: Final = 255
"""Of a node's name in UTF-8, at most; at least 1."""
META_BYTES: Final = 512
"""Of a node's meta, which holds its tags."""
ARRAY_ITEMS: Final = 64
"""Of an array, at most: room for all is made when it begins, and arrays may be nested 1000 deep."""
MAP_ITEMS: Final = 64
ADDRESSES_KEPT: Final = 4096
"""Addresses whose two forms are remembered."""

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


def pack(fields: Mapping[str, object]) -> bytes:
    """A map on the wire."""
    packed: bytes = _pack(fields)
    return packed


def unpack(data: bytes, items: int = MAP_ITEMS) -> Fields:
    """The map that the bytes are, all of them; it has at most so many items."""
    try:
        value = msgpack.unpackb(
            data,
            raw=True,
            use_list=False,
            max_str_len=len(data),
            max_array_len=ARRAY_ITEMS,
            max_map_len=items,
            max_ext_len=0,
        )
    except Exception as error:  # msgpack raises a dozen kinds
        raise unreadable(error) from None
    return as_fields(value)


def as_fields(value: Any) -> Fields:
    """The value, which must be a map."""
    if type(value) is not dict:
        raise ProtocolError(f"a map is expected, not {value!r:.40}")
    return value


def unreadable(error: Exception) -> ProtocolError:
    """What to raise when msgpack raised that."""
    return ProtocolError(f"no msgpack: {str(error)[:200] or type(error).__name__}")


def number(fields: Fields, key: bytes, maximum: int, default: int | None = None) -> int:
    """An integer from 0 to the maximum; without a default it must be there."""
    value = fields.get(key, default)
    if value is None:
        value = default
    if type(value) is int and 0 <= value <= maximum:
        return value
    raise ProtocolError(f"{key.decode()} is {value!r:.40}, a number from 0 to {maximum} is expected")


def flag(fields: Fields, key: bytes) -> bool:
    """A boolean, optional."""
    value = fields.get(key)
    if type(value) is bool:
        return value
    if value is None:
        return False
    raise ProtocolError(f"{key.decode()} is {value!r:.40}, a boolean is expected")


def raw(fields: Fields, key: bytes, maximum: int) -> bytes:
    """Bytes, optional."""
    value = fields.get(key)
    if type(value) is bytes and len(value) <= maximum:
        return value
    if value is None:
        return b""
    raise ProtocolError(f"{key.decode()} is {value!r:.40}, at most {maximum} bytes are expected")


def name(fields: Fields, key: bytes) -> str:
    """The name of a node."""
    return as_name(fields.get(key), key)


def optional_name(fields: Fields, key: bytes) -> str:
    """The name of a node, or nothing."""
    value = fields.get(key)
    return as_name(value, key) if value else ""


def as_name(value: Any, key: bytes) -> str:
    """The name that a value is; `key` says where, in errors."""
    if type(value) is not bytes or not 0 < len(value) <= NAME_BYTES:
        raise ProtocolError(f"{key.decode()} is {value!r:.40}, a name of 1 to {NAME_BYTES} bytes is expected")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"{key.decode()} is {value!r:.40}, which is no UTF-8") from None


def address(fields: Fields, host_key: bytes, port_key: bytes) -> Address:
    """An IP address (4 or 16 bytes) and a port, which is not 0."""
    found = optional_address(fields, host_key, port_key)
    if found is None:
        raise ProtocolError(f"{host_key.decode()} or {port_key.decode()} is missing")
    return found


def optional_address(fields: Fields, host_key: bytes, port_key: bytes) -> Address | None:
    """An IP address and a port; None when one of them is missing or zero."""
    host = raw(fields, host_key, 16)
    port = number(fields, port_key, U16_MAX, 0)
    if not host or not port:
        return None
    if len(host) not in (4, 16):
        raise ProtocolError(f"{host_key.decode()} has {len(host)} bytes, 4 or 16 are expected")
    return _address(host, port)


@lru_cache(ADDRESSES_KEPT)
def _address(host: bytes, port: int) -> Address:
    return Address(str(_plain(ip_address(host))), port)


@lru_cache(ADDRESSES_KEPT)
def host_bytes(host: str) -> bytes:
    """The bytes of an IP address; InvalidSetting when the host is none."""
    try:
        return _plain(ip_address(host)).packed
    except ValueError:
        raise InvalidSetting(f"{host!r:.60} is not an IP address, and gossip names nodes by those only") from None


def _plain(host: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address in IPv6 is the IPv4 address: else one node had two addresses."""
    return (host.ipv4_mapped if isinstance(host, IPv6Address) else None) or host


def versions(fields: Fields) -> tuple[int, ...]:
    """Protocol and delegate versions: (pmin, pmax, pcur, dmin, dmax, dcur), or () of an agent that does not say."""
    found = raw(fields, b"Vsn", 6)
    if len(found) not in (0, 6):
        raise ProtocolError(f"Vsn has {len(found)} bytes, 6 are expected")
    return tuple(found)
