"""Checkpoints: written, found, verified, loaded, looked at."""
