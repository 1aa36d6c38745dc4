"""What the compiler makes of the Triton kernels, without a GPU: a table that is compared from change to change.

    python -m benchmarks.gpu.compiled            brings the table up to date: compiles what changed since
    python -m benchmarks.gpu.compiled --check    compiles a part, and says what got worse against the table

`cases.py` launches every variant of a kernel that users meet, and is where a new kernel is added. `launches.py` catches
these launches and compiles them for devices that need not be there, by what comes with Triton; `variants.py` goes
through all of them. `sass.py` reads the machine code: instructions, and the loops that a kernel spends its time in.
`figures.py` says what is counted, what must hold of every kernel, and what counts as worse. `table.py` keeps the
figures in `benchmarks/results/`.

The table says what a device has to execute, not how long it takes: nothing here was measured on a GPU.
"""
