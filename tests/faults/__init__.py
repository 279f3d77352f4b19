"""Faults under load: what is done to servers, databases, networks and disks, and the count of what came of it."""
