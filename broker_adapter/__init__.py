"""Overload protection for somebody else's broker; empty so far.

This room will hold a proxy that stands in front of any MQTT broker, small embeddings for hosts that
have their own event loop, and a kit that checks how a broker behaves under overload. All of them
stand behind one `flowguard.flow.Guard`; none brings rules of its own.
"""
