"""All SQL of the server, one file a concept. Nothing here reads a clock or decides what a run's state means."""
