"""Patterns: how words are spelled in FX graphs, one word a file."""
