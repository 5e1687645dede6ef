"""The handlers of all request types, by subject. `routes` defines how to write one, `session` dispatches to them."""
