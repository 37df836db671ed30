"""WordPiece: trained on documents or given, and the wrapper that encodes."""
