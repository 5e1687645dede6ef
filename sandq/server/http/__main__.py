"""The HTTP process of a node. The node starts it: see `worker`."""

import signal
import sys

if __name__ == "__main__":
    # A terminal, or a process manager, signals the whole process group. The node gets the signal, and stops this
    # process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    from sandq.server.http.node_link import NodeInput

    node = NodeInput(sys.stdin.buffer, ends_process=True)

    # Import it after the input is read: loading takes a while, in which the node may end.
    from sandq.server.http.worker import main

    main(node)
