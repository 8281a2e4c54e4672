"""From planned steps of a graph to row tasks: axes, views, and the builder that proves that steps
share one domain of rows.
"""
