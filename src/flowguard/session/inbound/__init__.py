"""From the client: reading, checking and answering packets; see `packets`."""
