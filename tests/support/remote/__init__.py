"""A server of the tests that answers as real ones do, with their lies and their faults.

`stub_server.py` is the server: `with stub("vllm") as server:` gives its `url`, what it was asked and what it counted.
`language.py` is the model behind it, which draws tokens by hashes. `traits.py` says how each kind of server behaves:
what it heeds, what it takes with a 200 and ignores, what it refuses. `answers.py` writes answers and streams in each
server's shapes, `faults.py` what can go wrong on the way. `scripted_server.py` is another, without sockets, whose every
answer a test writes; `recordings.py` has what real servers were seen to do.

Every behaviour was seen at the real server: `tests/executor/remote/probe/recorded` has what they answered to the probe,
and a test that the stub of each kind answers alike.
"""
