"""Run sandctl in a process with such long timeouts that a pause of the machine does not end its waits."""

from __future__ import annotations

import sys

LONG_S = 1000.0

_CODE = f"""
import sandctl.__main__, functools, signal, sys
from sandq.client.kv.watch import Watch

def take_interrupts():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

if "watch" not in sys.argv:
    take_interrupts()
entered = Watch.__aenter__
async def begun(watch):
    found = await entered(watch)
    take_interrupts()
    return found
Watch.__aenter__ = begun
import sandctl.interrupts, sandctl.options.names, sandctl.settings, sandctl.output.printing
import sandq.client.options as options
from sandq.client.consumer import subscription

options.Options = functools.partial(options.Options, close_timeout_s={LONG_S}, cancel_timeout_s={LONG_S})
sandctl.settings.CONNECT_S = sandctl.settings.REQUEST_S = sandctl.settings.DELIVERY_S = {LONG_S}
sandctl.interrupts.CLEAN_UP_S = sandctl.interrupts.IMPATIENT_S = sandctl.output.printing.CLOSE_S = {LONG_S}
"""
_BENCH = f"""
import sandctl.bench_loads
sandctl.bench_loads.CLEAN_UP_S = {LONG_S}
"""


def patient(*args: str, change: str = "") -> list[str]:
    """Return the command that runs `sandctl ARGS` with long timeouts. `change`: code to run before sandctl.

    If the caller blocks SIGINT, it stays blocked until Python has started, and in a watch until the watch has begun."""
    bench = _BENCH if "bench" in args else ""
    return [sys.executable, "-c", f"{_CODE}{bench}{change}\nsandctl.__main__.run()", *args]
