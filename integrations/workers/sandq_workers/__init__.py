"""Frameworks of Python workers on sandq: `docs/integrations`."""
