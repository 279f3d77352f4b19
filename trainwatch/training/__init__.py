"""What runs inside the user's training. Nothing here may raise into it, wait for anything, or cost a step time."""
