"""Passes: canonicalize, raise, plan, lower, one a file; the textual pipeline and its instruments."""
