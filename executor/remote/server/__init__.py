"""A server as such: where it is (`address.py`), what it was seen to do (`server_capabilities.py`), and the connection
to it (`connection.py`) with keys (`key_in_text.py` keeps them out of messages), streams and time limits.
`failures.py`: how asking fails, and when it is repeated.
"""
