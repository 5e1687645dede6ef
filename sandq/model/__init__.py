"""Floor 0: the words everything else is written in.

Errors, limits, names, offsets, times, the message batch, topic settings and the node's configuration. Pure:
no clock, no randomness, no sockets, no event loop; `config.load_config` reads the one file it is given.
"""
