"""Checks of `sandq doctor` on certificates: whether they are usable and issued for this node, and when they expire."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Final

from sandq.model.config import NodeConfig
from sandq.model.config_tls import OFF
from sandq.tools.doctor.check import Check, failed, ok, warning

SOON_DAYS: Final = 30
_WILDCARDS = ("0.0.0.0", "::")


def check_tls(config: NodeConfig) -> Iterator[Check]:
    """Check the certificates of a node. Without TLS, check only whether other machines can reach the node."""
    section = config.tls
    if not section.is_on:
        is_reachable = config.listen.client.host not in ("127.0.0.1", "::1", "localhost")
        if is_reachable:
            todo = "create certificates, and name them in the section tls: docs/security.md"
            yield warning("tls", "no port uses it: others can read the data of clients and nodes on the network", todo)
        else:
            yield ok("tls", "no port uses it")
        return
    from sandq.model.errors import StartupError
    from sandq.tls.certificates import Certificates

    try:
        certificates = Certificates(section)
    except StartupError as error:
        yield failed("tls", error.message, "fix it; sandq certs creates certificates: docs/security.md")
        return
    yield ok("tls", f"client: {section.client}, http: {section.http}, peer: {section.peer}")
    now = datetime.datetime.now(datetime.UTC)
    for setting, at in certificates.ends():
        yield _end(setting, str(getattr(section, setting)), at, now)
    yield from _names(config, certificates)


def _end(setting: str, path: str, at: datetime.datetime, now: datetime.datetime) -> Check:
    subject, days = f"tls {setting}", (at - now).days
    todo = "replace the file: a running node reads it within seconds"
    if at <= now:
        return failed(subject, f"{path} has ended, at {at:%Y-%m-%d %H:%M} UTC", todo)
    if days < SOON_DAYS:
        return warning(subject, f"{path} ends in {days} days, at {at:%Y-%m-%d %H:%M} UTC", todo)
    return ok(subject, f"{path} ends in {days} days")


def _names(config: NodeConfig, certificates: object) -> Iterator[Check]:
    from sandq.tls.certificates import Certificates, trusts_itself
    from sandq.tls.names import is_of_host, is_of_node

    assert isinstance(certificates, Certificates)
    own, section, node_id = certificates.loaded.chain[0], config.tls, config.node.id
    todo = f"issue one: sandq certs node {node_id} --host {config.advertise_host} --ca DIR --out DIR --force"
    host = config.advertise_host
    if (section.client, section.http) != (OFF, OFF) and host not in _WILDCARDS and not is_of_host(own, host):
        yield failed("tls names", f"the certificate is not issued for {host}, by which clients reach this node", todo)
    if section.peer != OFF and not is_of_node(own, node_id):
        yield failed("tls names", f"the certificate is not that of node {node_id}: other nodes refuse it", todo)
    if section.ca_file is not None and (why := trusts_itself(certificates.loaded)) is not None:
        yield failed("tls ca_file", f"it does not trust the certificate of this node: {why}", todo)
