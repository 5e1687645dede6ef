"""A receiver of pushed messages: it verifies the sender and prints the messages, with Python's own HTTP server.

    python docs/examples/push_receiver.py --port 9000 --secret-file secret      # a file with whsec_..., one in a line
    sandctl group push set orders shop --url http://127.0.0.1:9000/hooks --secret-file secret

A real receiver stores the `webhook-id` of each processed message, and ignores a message that is delivered again.
"""

from __future__ import annotations

import argparse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import sandq
from sandq.errors import InvalidRequest

MOST_BYTES = 8 << 20


class Receiver(BaseHTTPRequestHandler):
    """Answer 204 after a message was processed, 401 without a valid signature, 413 if the body is too large."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    secrets: list[str]
    done: set[str]

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        if size > MOST_BYTES:
            self.close_connection = True
            self._answer(413)
            return
        body = self.rfile.read(size)
        try:
            sandq.verify_push(dict(self.headers), body, self.secrets)
        except InvalidRequest as error:
            print(f"refused: {error}", flush=True)
            self._answer(401)
            return
        message = self.headers["webhook-id"]
        if message not in self.done:
            print(f"{self.headers['sandq-topic']} attempt {self.headers['sandq-attempt']}: {body.decode()}", flush=True)
            self.done.add(message)
        self._answer(204)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the log lines of the server."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--secret-file", type=Path, required=True)
    given = parser.parse_args()
    Receiver.secrets, Receiver.done = given.secret_file.read_text().split(), set()
    with ThreadingHTTPServer(("127.0.0.1", given.port), Receiver) as server:
        print(f"listening on port {given.port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
