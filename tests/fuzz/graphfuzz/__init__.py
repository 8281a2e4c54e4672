"""A graph fuzzer: random compositions of words, in random spellings, on which the passes must change
nothing but speed.
"""
