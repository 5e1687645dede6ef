"""Ready messages of a partition in topics with priorities or fair tenants: their queues, order, limits and turns."""
