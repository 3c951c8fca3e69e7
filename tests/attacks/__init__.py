"""Attacks on a broker from outside, each with its bound and its control."""
