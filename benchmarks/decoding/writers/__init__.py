"""The systems that write JSON held to a schema: each behind `Writer` (`peers/peer.py`), each in its own environment."""
