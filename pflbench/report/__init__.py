"""Tables and figures: a query, then a rendering."""
