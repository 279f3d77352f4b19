"""What is observed in a training process, one file a thing."""
