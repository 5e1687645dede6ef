"""Queries, which change nothing: get, why, pages, fetch, forecast, rows of groups."""
