"""Ends with 0 while the node of this container takes work. SANDQ_HEALTH_URL says where it listens."""

import os
import ssl
import sys
import urllib.error
import urllib.request

ASKED = ("http://127.0.0.1:2108/readyz", "https://127.0.0.1:2108/readyz")
ANSWER_S = 4.0


def main() -> int:
    """The exit code; what is wrong goes to standard error."""
    # It is this container's own node, on loopback: checking its certificate would prove nothing more.
    anyones = ssl._create_unverified_context()
    wrong = ""
    for url in [os.environ["SANDQ_HEALTH_URL"]] if "SANDQ_HEALTH_URL" in os.environ else ASKED:
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_S, context=anyones):
                return 0
        except urllib.error.HTTPError as error:
            wrong = f"{url}: {error.code} {error.read(1000).decode(errors='replace')}"
            if error.code == 503:
                break
        except OSError as error:
            wrong = wrong or f"{url}: {error}"
    print(wrong, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
