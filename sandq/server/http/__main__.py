"""HTTP's process of a node, as the node starts it: see `worker`."""

import signal
import sys

if __name__ == "__main__":
    # Told by a terminal, or by who stops a whole group of processes: the node, which is told as well, says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    from sandq.server.http.node_link import NodeInput

    node = NodeInput(sys.stdin.buffer, ends_process=True)

    # It takes its time to load.
    from sandq.server.http.worker import main

    main(node)
