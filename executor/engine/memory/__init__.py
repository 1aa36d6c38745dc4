"""Which sequence owns which page of KV."""
