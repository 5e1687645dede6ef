"""Floor 0: types and rules that all other packages use.

Errors, limits, names, offsets, times, the message batch, topic settings and the node's configuration. This package is
pure: it uses no clock, randomness, sockets or event loop. Only `config.load_config` reads a file.
"""
