"""The results database, the only place with SQL: `database` opens it, `write` fills it, the others read it."""
