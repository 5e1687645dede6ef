"""`python -m sandctl`."""

from __future__ import annotations

from sandctl.main import main

main()
