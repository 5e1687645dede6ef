"""What a node tells of itself when something is wrong with it: stacks, stalls, queues."""
