"""The HTTP API: FastAPI under Hypercorn's trio server, a client of the cluster like any other (ADR 0009)."""
