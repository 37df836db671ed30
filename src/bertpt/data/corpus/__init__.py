"""Documents: read from sources, cleaned, deduplicated, split, and kept as Parquet."""
