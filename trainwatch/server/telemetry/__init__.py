"""What the server says of itself: metrics for Prometheus, and its log."""
