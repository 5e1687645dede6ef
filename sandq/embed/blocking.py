"""`embedded` of `sandq.sync`."""

from __future__ import annotations

import os
from functools import partial

from sandq.client.client import CLIENT_NAME
from sandq.client.options import DEFAULTS, Token
from sandq.embed.asynchronous import embedded as run_embedded
from sandq.embed.settings import Listen
from sandq.model.times import Duration
from sandq.sync.client import Client, opened


def embedded(
    data: str | os.PathLike[str],
    *,
    listen: Listen = False,
    share: bool = False,
    config: str | os.PathLike[str] | None = None,
    name: str = CLIENT_NAME,
    timeout: Duration = DEFAULTS.timeout_s,
    delivery_timeout: Duration = DEFAULTS.delivery_timeout_s,
    token: Token | None = None,
    tracing: bool | str = False,
) -> Client:
    """Run a broker in this process: `with sandq.sync.embedded("./data") as client:`; or keep the client, and `close()`
    it.

    The arguments are those of `sandq.embedded`. The broker stops when the client is closed, and at the end of the
    process.
    """
    return opened(
        partial(
            run_embedded,
            data,
            listen=listen,
            share=share,
            config=config,
            name=name,
            timeout=timeout,
            delivery_timeout=delivery_timeout,
            token=token,
            tracing=tracing,
        )
    )
