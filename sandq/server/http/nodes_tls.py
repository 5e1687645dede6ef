"""TLS settings with which HTTP, as a client of the cluster, connects to client ports."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sandq.client.tls import ClientTls
from sandq.model.config_tls import ACCEPT, OFF
from sandq.tls.certificates import Certificates


def nodes_tls(certificates: Certificates, own_hosts: Collection[str], own_names: Sequence[str]) -> ClientTls | None:
    """Return the settings for connections to nodes, from this node's certificates; None: no TLS.

    If this node's client port requires TLS, all connections use it. If the port accepts connections with and without
    TLS, connections use TLS with every node that supports it: during a migration, other nodes may require TLS already,
    or not support it yet.

    A port's certificate must be issued for the host that is dialled. For this node's own hosts (`own_hosts`), it may be
    issued for any of `own_names`."""
    mode = certificates.settings.client
    if mode == OFF:
        return None

    def name_of(host: str) -> str:
        """Return the name that the certificate of a host must have."""
        return certificates.name_for(host, *own_names) if host in own_hosts else host

    return ClientTls(lambda: certificates.loaded.inside, name_of=name_of, falls_back=mode == ACCEPT)
