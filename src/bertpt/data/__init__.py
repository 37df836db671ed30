"""Text to batches: sources, tokenizer, store, plan, masks, loader."""
