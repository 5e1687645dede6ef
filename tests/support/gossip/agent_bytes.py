"""Hold bytes that a Serf agent (Debian's Serf 0.8.2, profile lan) sent in its two protocols to a silent peer.

The agent is agent1 on 127.0.0.1:17946 with the tag role: web. sandq1 on 127.0.0.1:19900 (cluster: t) met it by a
push-pull."""

from __future__ import annotations

from base64 import b64decode
from typing import Final

KEY: Final = bytes(range(32))
"""Key of the encrypted messages."""

STREAM_ACK: Final = b64decode("CYKkQWxnbwCjQnVmtwAFCDoFJUweNm/CkAFWakqZOE7eJAgI")
STREAM_PUSH_PULL: Final = b64decode(
    "CYKkQWxnbwCjQnVm2gDWAA0MIqXkTRo3w0o5eUOmzJwArKrMKSNnCp0wdMowKeOmmQAnh0gFIUNGDqk/AAAEWJXEzZgwctxgTPPG"
    "TQBSTcpcXPUvECk5b9iUGXWnjBhSTsK0KWMqzBmOdGKQgvJGDp1mRjSUsoixDIBRVua4MRWggAABBcwaUlXEDlQmVNIsDWCqLdQ5"
    "3AQAAMa3r9+/gAMLHky4sOHDiBMrXsy4sePHkCNLnky5suXLmDMrLgVXbpmVG83QydlGDMU5kFRFqUMxT+e5rLjSqTPntcNATZ+6"
    "iQogIA=="
)
ACK_AND_TWO_ALIVE: Final = b64decode(
    "CYKkQWxnbwCjQnVm2gDpAA8MAGAJgBIASQQIOgUlTB42b8KQ0QZAUABCqoKQUVNnDp02ZdzQWQagpMmSpYrIkfNGzrIf+E6WNIWk"
    "TJozaEb6IIevFqJxaOKNslJmDCaSMksiTbpUZtOTT01GVZqUatVSU8rEcfKmCQFDpDSSkUPqT8kAq5K4GRNGjpswdNK8cROAVJMy"
    "dMKw+hfo1Bg2HemUkROKDimuZMqYmhPGDZk4MUhBaUmnWRNeQ+e4MRWggAABBQp8DUtmbNmzade2fRt3bt27eVfxJcWSTZlRd8qI"
    "OfwmsakwZ0LSiTxZTmUjGjJv7vw5dEA="
)
"""A compound message, compressed."""
TWO_ALIVE: Final = b64decode(
    "DE4GZcUHAgBKAEkEhqRBZGRypH8AAAGrSW5jYXJuYXRpb24BpE1ldGGs/4GnY2x1c3RlcqF0pE5vZGWmc2FuZHExpFBvcnTNTbyj"
    "VnNupgEFAgIFBQSGpEFkZHKkfwAAAatJbmNhcm5hdGlvbgGkTWV0Yav/gaRyb2xlo3dlYqROb2RlpmFnZW50MaRQb3J0zUYao1Zz"
    "bqYBBQICBQU="
)
"""A compound message, with a CRC."""
NACK: Final = b64decode("C4GlU2VxTm9O")
PING: Final = b64decode("AIWkTm9kZaZzYW5kcTGlU2VxTm8CqlNvdXJjZUFkZHKkfwAAAapTb3VyY2VOb2RlpmFnZW50MapTb3VyY2VQb3J0zUYa")
PING_AND_SUSPECT: Final = b64decode(
    "DFIMr84HAgBFACcAhaROb2RlpnNhbmRxMaVTZXFObwOqU291cmNlQWRkcqR/AAABqlNvdXJjZU5vZGWmYWdlbnQxqlNvdXJjZVBv"
    "cnTNRhoDg6RGcm9tpmFnZW50MatJbmNhcm5hdGlvbgGkTm9kZaZzYW5kcTE="
)
"""A compound message, with a CRC."""
DEAD: Final = b64decode("DHN9shMFg6RGcm9tpmFnZW50MatJbmNhcm5hdGlvbgGkTm9kZaZzYW5kcTE=")
"""A dead message, with a CRC."""
SEALED_STREAM_PUSH_PULL: Final = b64decode(
    "CgAAAQIB44yWVoas3FJdbCViwOdzQaJM3CoihVGTRuyICs6B83TMd4YRrrRfOEop2S1+fziEInbErVh+WlYhWAZBY0RxpFuT7+7m"
    "lxaWXkrfKReqyCDYA2oPErtOtYLUeXikEawoUgD3AOlnsxttx34CsPOh96URR4AADNCGiQkizKvBovQbrXshzMtYmDZZ/VLNpcZo"
    "H5kch+OSvW2Wvyki8i+k5zNHU5Km400iS0apBGWuq/wZ0gS6y4FCj0aRfP+Hz5MGC3kgzAmuH8RGmniyt4aNt0gYapAe5BDSpcy+"
    "bse14/KwpXKEC/tGyEbjm4W2Uy5GZMmmctioFL1fuRc34imVU8k="
)
SEALED_TWO_ALIVE: Final = b64decode(
    "ATIhdI0MYLOYiZ+OBSnT5sb4ZUjzfJzB+g8ZCywquGNhBYAQWC0hD/X8lB2EY2RzhRyRD+LMS7Owb0cOkh0A9d+Cf1z/E35U6h5a"
    "nJrIsq+WLFjWrWwHUJhJtB6RaCSTk1/BDBlMsIWV5UVqYkZsij7f4ufsXk+xTfR86EGNTfATCkQJglsGAVcN2Vm6koY8luN4nY8C"
    "qr4m5JyrTYFFAXqEzkFMGQFlHBy27S6RN0gbTDKLbZ5lPMw6hg=="
)
SEALED_PING: Final = b64decode(
    "ATgk8uTZSHwdXi6z+rXabsKFqFx51l/WSk6uQmCdpjpLwCQvFPfNH6u/0Tj28HEIYPLVxAcO/A+w4SY6gnzyjjhFiEPrSOar+YMh"
    "bNC4UVELlU7qOa52TD/AxQ/7+qEGzvY="
)
