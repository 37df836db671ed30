"""From the store to batches: plan, masks, loader, and what needs no context."""
