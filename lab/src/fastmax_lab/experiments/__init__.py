"""Experiments: each a list of runs that are measured one by one, kept as JSON, and resumed where they stopped."""
