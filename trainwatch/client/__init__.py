"""Reads a TrainWatch server from Python: notebooks, reports, scripts.

    from trainwatch import Client

    runs = Client("http://127.0.0.1:8420").runs(project="default", state="finished")
    runs.to_pandas()
    runs[0].points("train/loss").value

pandas, pyarrow and Plotly are used where they are installed, and only by what is named after them.
"""

try:
    import httpx2  # noqa: F401
except ImportError as error:
    raise ImportError("trainwatch.Client needs the package httpx2: pip install 'trainwatch[client]'") from error

from trainwatch.client.client import Client
from trainwatch.client.link import ClientError, NotAllowed, NotFound, Unreachable
from trainwatch.client.listing import Listing
from trainwatch.client.points import Points, Series
from trainwatch.client.run import Alert, Run

__all__ = [
    "Alert",
    "Client",
    "ClientError",
    "Listing",
    "NotAllowed",
    "NotFound",
    "Points",
    "Run",
    "Series",
    "Unreachable",
]
