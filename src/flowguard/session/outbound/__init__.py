"""To the client: what waits, is sent, and is not acknowledged; see `messages`."""
