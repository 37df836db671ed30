"""Documents to sentences of token ids, and the store that keeps them."""
