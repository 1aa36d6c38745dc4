"""Training the built-in family: tokenizer, batches, models, and the stages that lead from one to the next."""
