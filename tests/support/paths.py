"""Where the repository is: documents, configurations and programs that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
