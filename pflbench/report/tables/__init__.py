"""One file per kind of table: its numbers and its grid."""
