"""Python imports it when a process of a node starts (`benchmarks.nodes.busy_store`)."""

from benchmarks.nodes.busy_store import install

install()
