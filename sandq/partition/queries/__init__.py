"""Queries, which change no state: get, why, pages, fetch, forecast, rows of groups."""
