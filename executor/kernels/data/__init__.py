"""The tensors that kernels read: KV rows, page tables, shared prefixes."""
