"""The HTTP API: FastAPI on uvicorn, a client of the cluster like any other (ADRs 9 and 50)."""
