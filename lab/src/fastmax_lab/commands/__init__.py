"""The commands of `fastmax`, a module each: options to calls, results to text."""
