"""Tells people of alerts: takes what the outbox holds, and sends it to channels.

``sender.py`` decides when; ``kinds.py`` knows the kinds of channels, one file each; ``notice.py`` says what there is to
say, ``retry.py`` what a failure means, ``addresses.py`` and ``http.py`` whom a message may reach.
"""
