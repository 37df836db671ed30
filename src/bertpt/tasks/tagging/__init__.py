"""A tag for each word: entities and parts of speech."""
