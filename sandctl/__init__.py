"""The command line of sandq, for people and scripts: a client, and nothing more."""
