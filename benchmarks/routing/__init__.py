"""The router: what its policies come to on LLM-QP's synthetic harness, and on recorded decoding."""
