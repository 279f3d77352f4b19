"""Work that is done again and again beside the answering of requests: what silence means, rollups, retention."""
