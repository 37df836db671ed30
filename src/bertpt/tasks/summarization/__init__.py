"""Sentences of an article that say the most of it."""
