"""The only module that imports LevelDB's Python binding.

Two distributions have the same source (docs/storage-format.md describes the comparison). `plyvel` has no wheels for
Python 3.12 on arm64, and none for newer Python versions. `plyvel-next` has wheels for 3.12 and newer, with another
module name.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 12):
    from plyvel_next import DB, CorruptionError, Error
    from plyvel_next._plyvel import RawIterator

    DISTRIBUTION = "plyvel-next"
else:
    from plyvel import DB, CorruptionError, Error
    from plyvel._plyvel import RawIterator

    DISTRIBUTION = "plyvel"

__all__ = ["DB", "DISTRIBUTION", "CorruptionError", "Error", "RawIterator"]
