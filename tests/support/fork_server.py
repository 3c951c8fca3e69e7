"""The process that other processes of tests are forked from; there is one per process of tests."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.torture.process", "tests.support.commands"])
"""One list for all: a second one replaces the first. Each module imports all that its forks run."""
