"""Tests of defaults that sandctl repeats because the client loads slowly: they equal the client's defaults."""

from __future__ import annotations

from sandctl.options.common import DEFAULT_SERVERS
from sandq.client.options import parse_server
from sandq.model.config_schema import ListenSection
from sandq.model.ports import DEFAULT_SERVER


def test_default_server_is_the_default_listen_address() -> None:
    assert DEFAULT_SERVERS == (DEFAULT_SERVER,)
    client = ListenSection().client
    assert parse_server(DEFAULT_SERVER) == (client.host, client.port)
