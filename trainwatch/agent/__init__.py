"""The agent: the small process beside the training, one per run and node.

It tails the journals, samples memory from outside, evaluates the rules, ships everything to the server, and goes on
when the training process hangs or dies.
"""
