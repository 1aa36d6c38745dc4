"""What lies between the matrix products of a decoder's layer: one kernel each, as `kernels/layers.py` describes them.

Open `add_norm.py` first. A program has about a thousand numbers, so that one row keeps several multiprocessors busy
where no sum needs all of it. How many rows a program has depends on their width alone: a row's bits are its own.
"""
