"""A service that delivers events as signed webhooks."""
