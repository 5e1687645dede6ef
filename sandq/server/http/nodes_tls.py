"""How HTTP, a client of the cluster, speaks TLS to client ports."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sandq.client.tls import ClientTls
from sandq.model.config_tls import ACCEPT, OFF
from sandq.tls.certificates import Certificates


def nodes_tls(certificates: Certificates, own_hosts: Collection[str], own_names: Sequence[str]) -> ClientTls | None:
    """By the certificates of a node: where its own client port requires TLS, as the others' then do; where it accepts
    it, with those that do, for others may require it already, or have none yet. None: without.

    Whose certificate it is that a port shows, is checked by the host that is dialled; at a host of the node's own
    (`own_hosts`) by whichever of its names (`own_names`) its certificate is issued for."""
    mode = certificates.settings.client
    if mode == OFF:
        return None

    def name_of(host: str) -> str:
        return certificates.name_for(host, *own_names) if host in own_hosts else host

    return ClientTls(lambda: certificates.loaded.inside, name_of=name_of, falls_back=mode == ACCEPT)
