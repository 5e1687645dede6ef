"""Provide the TLS setting of test clients that use HTTP without TLS."""

from __future__ import annotations

import ssl
from typing import Final

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Value of the argument `verify` of clients for http:// URLs. By default, httpx takes 40 ms per client to load all root
certificates."""
