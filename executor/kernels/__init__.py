"""Compute kernels over paged KV."""
