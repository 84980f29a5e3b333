"""A section for each experiment: a function from results to what the page shows of it."""
