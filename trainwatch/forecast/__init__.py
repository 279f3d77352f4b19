"""When and where memory will run out: growth, batches still to come, phases, and a verdict in words. Pure."""
