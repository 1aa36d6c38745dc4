"""`qpdsl serve`: programs, and bare models, behind OpenAI's HTTP API.

All requests run in one session, so they share its models, its prefix cache and its memory. What a request asks for and
the server does not do is refused in OpenAI's form of an error, never ignored.
"""
