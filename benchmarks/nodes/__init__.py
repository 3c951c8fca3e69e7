"""A cluster of flowguard's nodes on one machine: what it costs, and what happens if a node dies."""
