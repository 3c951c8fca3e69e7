"""Python imports it when a process of a broker starts (`benchmarks.overload.slowed_store`)."""

from benchmarks.overload.slowed_store import install

install()
