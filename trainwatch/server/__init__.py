"""The server: stores what agents ship, shows it, and passes people's commands back.

It never imports torch, transformers, :mod:`trainwatch.training` or :mod:`trainwatch.agent`.
"""
