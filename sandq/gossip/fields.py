"""Msgpack maps as Go's agents write them: only the old raw types, with the names of Go's fields as keys.

Keys and texts arrive as bytes. Unknown keys come from newer agents and are ignored. Nil, or a missing optional key, is
Go's zero value. The data comes from the network: invalid data raises ProtocolError, and no announced length allocates
more memory than the received data needs.
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
"""Maximum length of a node's name in UTF-8; the minimum is 1."""
META_BYTES: Final = 512
"""Maximum length of a node's meta, which contains its tags."""
ARRAY_ITEMS: Final = 64
"""Maximum length of an array: msgpack allocates it when it begins, and arrays may be nested 1000 deep."""
MAP_ITEMS: Final = 64
ADDRESSES_KEPT: Final = 4096
"""Maximum number of cached conversions between the two forms of an address."""

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


def pack(fields: Mapping[str, object]) -> bytes:
    """Encode a map."""
    packed: bytes = _pack(fields)
    return packed


def unpack(data: bytes, items: int = MAP_ITEMS) -> Fields:
    """Decode all of the bytes as one map with at most `items` items."""
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
    except Exception as error:  # msgpack raises a dozen different exceptions
        raise unreadable(error) from None
    return as_fields(value)


def as_fields(value: Any) -> Fields:
    """Return the value if it is a map; raise ProtocolError otherwise."""
    if type(value) is not dict:
        raise ProtocolError(f"a map is expected, not {value!r:.40}")
    return value


def unreadable(error: Exception) -> ProtocolError:
    """Return the error for an exception of msgpack."""
    return ProtocolError(f"no msgpack: {str(error)[:200] or type(error).__name__}")


def number(fields: Fields, key: bytes, maximum: int, default: int | None = None) -> int:
    """Return an integer from 0 to the maximum; the key is required unless there is a default."""
    value = fields.get(key, default)
    if value is None:
        value = default
    if type(value) is int and 0 <= value <= maximum:
        return value
    raise ProtocolError(f"{key.decode()} is {value!r:.40}, a number from 0 to {maximum} is expected")


def flag(fields: Fields, key: bytes) -> bool:
    """Return a boolean; False if it is missing."""
    value = fields.get(key)
    if type(value) is bool:
        return value
    if value is None:
        return False
    raise ProtocolError(f"{key.decode()} is {value!r:.40}, a boolean is expected")


def raw(fields: Fields, key: bytes, maximum: int) -> bytes:
    """Return bytes; empty if they are missing."""
    value = fields.get(key)
    if type(value) is bytes and len(value) <= maximum:
        return value
    if value is None:
        return b""
    raise ProtocolError(f"{key.decode()} is {value!r:.40}, at most {maximum} bytes are expected")


def name(fields: Fields, key: bytes) -> str:
    """Return the name of a node."""
    return as_name(fields.get(key), key)


def optional_name(fields: Fields, key: bytes) -> str:
    """Return the name of a node, or "" if it is missing."""
    value = fields.get(key)
    return as_name(value, key) if value else ""


def as_name(value: Any, key: bytes) -> str:
    """Return a value as a node's name; `key` is its key, for errors."""
    if type(value) is not bytes or not 0 < len(value) <= NAME_BYTES:
        raise ProtocolError(f"{key.decode()} is {value!r:.40}, a name of 1 to {NAME_BYTES} bytes is expected")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"{key.decode()} is {value!r:.40}, which is no UTF-8") from None


def address(fields: Fields, host_key: bytes, port_key: bytes) -> Address:
    """Return an IP address (4 or 16 bytes) and a port, which is not 0."""
    found = optional_address(fields, host_key, port_key)
    if found is None:
        raise ProtocolError(f"{host_key.decode()} or {port_key.decode()} is missing")
    return found


def optional_address(fields: Fields, host_key: bytes, port_key: bytes) -> Address | None:
    """Return an IP address and a port; None if one of them is missing or zero."""
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
    """Return the bytes of an IP address. Raises InvalidSetting for other hosts."""
    try:
        return _plain(ip_address(host)).packed
    except ValueError:
        raise InvalidSetting(f"{host!r:.60} is not an IP address, and gossip names nodes by those only") from None


def _plain(host: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address for an IPv4-mapped IPv6 address: otherwise one node would have two addresses."""
    return (host.ipv4_mapped if isinstance(host, IPv6Address) else None) or host


def versions(fields: Fields) -> tuple[int, ...]:
    """Return the versions (pmin, pmax, pcur, dmin, dmax, dcur) of memberlist and Serf; () if the agent sends none."""
    found = raw(fields, b"Vsn", 6)
    if len(found) not in (0, 6):
        raise ProtocolError(f"Vsn has {len(found)} bytes, 6 are expected")
    return tuple(found)
