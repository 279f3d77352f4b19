"""``trainwatch demo``: a server, a healthy training run and one that goes wrong, on this machine, without a download.

* :mod:`trainwatch.demo.runner` starts everything and says what happens; it imports neither torch nor transformers.
* :mod:`trainwatch.demo.processes` keeps track of what was started, so that nothing stays behind.
* :mod:`trainwatch.demo.train` is one training run, in a process of its own; :mod:`trainwatch.demo.corpus` is its data.
"""
