"""Who is let in: tokens, and the sessions of browsers."""
