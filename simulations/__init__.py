"""The real objects of flowguard in virtual time; empty so far.

This room will hold the event engine, links that delay and lose, clients with their retry policies,
nodes with a service-time model, the scenarios, and the Parquet writer. Same seed, same bytes.
"""
