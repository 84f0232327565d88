"""All clients of a cohort as one program."""
