"""Measures, and writes what it measured as JSON. Drawing is the business of `fastmax.report`."""
