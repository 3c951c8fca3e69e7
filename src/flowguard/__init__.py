"""flowguard: an MQTT 5.0 and 3.1.1 broker that stays itself under overload.

Every client has a window of work in process, which shrinks as the node's load grows; whoever is at
its limit is not read until work is done, and who cannot be taken in is told so. Below `broker`, the
only room with trio, all of it is plain synchronous Python: bytes and time in, decisions out.
"""

__version__ = "0.1.0"
