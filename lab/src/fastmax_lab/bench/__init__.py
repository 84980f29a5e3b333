"""Measures, and writes what it measured as JSON. Drawing is the business of `fastmax_lab.report`."""
