"""The report of `fastmax-lab reproduce`: measurements of JSON to tables, charts and one page. It measures nothing."""
