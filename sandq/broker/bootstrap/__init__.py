"""Bootstrap of a cluster: electing a founder, founding, joining."""
