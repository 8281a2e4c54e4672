"""Emitters: how each word and each step of a row task becomes Triton source. One file a family, one
explicit table.
"""
