"""A server as such: where it is (`address.py`), what it was seen to do (`abilities.py`, as JSON `abilities_json.py`),
and the connection to it (`connection.py`), with keys (`keys.py`), streams (`sse.py`), time limits and retries
(`retries.py`). How asking it fails is in `errors.py`.
"""
