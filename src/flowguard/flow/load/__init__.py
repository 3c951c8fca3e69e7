"""The load that a node observes: samples, signals and their pressure; see `signals`."""
