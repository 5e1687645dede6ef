"""Everything that accesses a disk (floor 2). All calls block: this package uses no event loop.

| module | content |
|---|---|
| `files` | the interface to one directory tree, and its implementation on a real disk |
| `memory_files` | the in-memory implementation of `files`, for tests and simulation |
| `wal` | the write-ahead log of a node; `wal_format`, `wal_recovery`, `wal_groups`, `wal_restart` are its parts |
| `stores` | the interface to LevelDB, and its in-memory implementation; `level_stores`, `level_check` are LevelDB |
| `keys` | order-preserving encodings |
| `snapshot` | the rows of a store in chunks, to be sent to another node |
| `pointers`, `identity`, `known_peers` | the small files, all in the envelope of `small_file` |

`docs/storage-format.md` specifies the bytes of all formats, with examples that a test decodes.
"""
