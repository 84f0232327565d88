"""From a specification to rows in the database."""
