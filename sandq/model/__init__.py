"""Floor 0: types and rules that all other packages use.

Errors, limits, names, offsets, times, the message batch, topic settings and the node's configuration. Pure: no clock,
no randomness, no sockets, no event loop; only `config.load_config` reads a file.
"""
