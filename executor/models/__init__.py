"""What a model name stands for: a checkpoint, its tokenizer, and how it scores."""
