"""How long projects keep their data, and coarser copies of long series."""
