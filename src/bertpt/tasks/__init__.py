"""Fine-tuning: read, encode, head, loss, decode, score."""
