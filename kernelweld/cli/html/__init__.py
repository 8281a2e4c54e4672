"""A report as one HTML file that needs nothing else: no network, no script to be readable."""
