"""Admission windows of clients, and what a packet counts in them; see `window`."""
