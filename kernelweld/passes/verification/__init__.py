"""Checking a planned weld: its kernel against the nodes it replaces, on drawn inputs, with a float64
run as the truth.
"""
