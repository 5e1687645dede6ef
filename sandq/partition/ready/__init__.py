"""Ready messages of a partition in topics with priorities or fair tenants: queues of messages, their order, limits and
turns of tenants."""
