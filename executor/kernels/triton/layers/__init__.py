"""What lies between the matrix products of a decoder's layer: one kernel each."""
