"""The HTTP API: FastAPI on uvicorn, which uses the cluster as a client (ADRs 9 and 50)."""
