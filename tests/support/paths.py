"""Define the path of the repository, whose documents, configurations and programs tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
