"""Clients for HTTP without TLS."""

from __future__ import annotations

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""`verify` of clients for http:// URLs. By default, httpx loads all root certificates for each client, in 40 ms."""
