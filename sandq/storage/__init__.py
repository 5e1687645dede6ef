"""Floor 2: everything that touches a disk. Blocking, no event loop.

| module | what |
|---|---|
| `files` | the port to one directory tree, and the real disk |
| `memory_files`, `faulty_files` | its twins for tests and simulation |
| `wal` | the write-ahead log of a node; `wal_format`, `wal_recovery`, `wal_groups`, `wal_restart` are its parts |
| `stores` | the port to LevelDB, and its memory twin; `level_stores`, `level_check` are LevelDB |
| `keys` | order-preserving encodings |
| `snapshot` | the rows of a store in chunks, on their way to another node |
| `pointers`, `identity`, `known_peers` | the small files, all in the envelope of `small_file` |

`docs/storage-format.md` holds the byte grammar of all of them, with examples that a test decodes.
"""
