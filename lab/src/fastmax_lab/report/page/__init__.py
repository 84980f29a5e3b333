"""The report of `fastmax-lab reproduce`: documents of JSON to tables, charts and one page. It measures nothing."""
