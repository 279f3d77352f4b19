"""The autopsy: when a step was not finite, its batch is run once more, with hooks and while the weights are clean."""

from trainwatch.training.autopsy.examine import MicroBatch, examine
from trainwatch.training.autopsy.quiet import is_running

__all__ = ["MicroBatch", "examine", "is_running"]
