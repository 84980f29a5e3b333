"""The report of `fastmax reproduce`: documents of JSON to tables, charts and one page. It measures nothing."""
