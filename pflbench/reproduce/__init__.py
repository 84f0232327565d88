"""A table or figure of the papers from nothing: which runs it needs, which of them there are, how long the others will take."""
