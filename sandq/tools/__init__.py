"""Commands of `sandq` other than the node: gateways, certificates, and checks of configurations and data directories.

`recover`, `certs` and the gateways write files or serve requests. All other commands only read, and are safe while a
node runs on the same data directory.
"""
