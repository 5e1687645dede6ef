"""One handler for each type of request, by subject; `routes` is how they are written, `session` where they meet."""
