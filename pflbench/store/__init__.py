"""The results database, the only place with SQL: `db` opens it, `write` fills it, `read` answers reports."""
