"""Kinds of sources: each module reads one of them into raw documents."""
