"""day: the day of live brokers: what they did, what happened, and the worst of it."""
