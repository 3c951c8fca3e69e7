"""From the client: what is read, judged and answered; see `packets`."""
