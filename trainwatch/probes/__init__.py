"""Readings of the machine: memory of devices, hosts, cgroups, processes. Shared by the agent and the training side."""
