"""The wire protocol, pure: frames, requests, replies. `docs/protocol.md` is its specification."""
