"""Where code that a model wrote is run, with its unit tests: in a process that can do little else.

Read `run.py` first: `passes_tests` starts the process and waits for its word, and `walls` says what holds on this
machine. `process.py` is the process itself, a script that imports nothing of this package: it builds the walls, and
then runs the code. `system_calls.py` makes the filter of system calls that is one of them.

Every wall is the kernel's, and no object of Python holds one, so that code can change whatever it finds in its
interpreter. Linux has three: the filter (seccomp), rules for files (Landlock), and namespaces. Code runs where the
filter holds and one of the others, as each of these two closes the files. Elsewhere it is refused, unless the caller
takes what there is ("unconfined").
"""
