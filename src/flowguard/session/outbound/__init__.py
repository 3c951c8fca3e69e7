"""To the client: messages that wait, are sent, or are unacknowledged; see `messages`."""
