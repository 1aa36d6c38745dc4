"""A server as such: where it is (`address.py`), what it was seen to do (`abilities.py`), and the connection to it
(`connection.py`), with keys, time limits and retries."""
