"""Where alerts go: channels, silences, and what is still to be delivered."""
