"""What every request and answer goes through, and what is served besides the API's routes."""
