"""From evidence to what it means: pure functions, values in, values out."""
