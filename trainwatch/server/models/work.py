"""Which server does the work that only one may do."""
