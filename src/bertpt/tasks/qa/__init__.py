"""Answers as spans of a text."""
