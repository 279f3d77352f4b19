"""What a rank says of itself when it begins: surroundings, model, data.

Read once, at the begin of a training, in a few milliseconds: nothing heavy is imported for it, no device is woken up,
no process is started. What cannot be read is left out.
"""

from __future__ import annotations

from trainwatch.training.describe.dataset import describe_datasets
from trainwatch.training.describe.environment import describe_environment
from trainwatch.training.describe.model import describe_model

__all__ = ["describe_datasets", "describe_environment", "describe_model"]
