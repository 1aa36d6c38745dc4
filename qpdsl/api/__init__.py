"""The Python face: programs written as Python functions, and what is done with a program from Python."""
