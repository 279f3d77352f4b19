"""Installs PyTorch for the CPU into the Python that runs this, and never the gigabytes of CUDA libraries by accident.

On Linux a plain ``pip install torch`` fetches the CUDA build. So, in this order:

1. a PyTorch that is already there is kept;
2. a CPU build that lies in a folder pip is configured to look into (``find-links``) is used;
3. the CPU build is fetched from PyTorch's own index.

macOS and Windows have only one build on PyPI, and get it from there. ``TORCH_INDEX_URL`` names another index, e.g. a
mirror, or one with a CUDA build that is really wanted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

MINIMUM = "torch>=2.4"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Settings about how to reach the network; the rest (other indexes) must not reach step 3, since pip takes the newest
# version of all indexes, and that may be PyPI's CUDA build.
_KEPT_SETTINGS = ("cert", "client-cert", "proxy", "trusted-host", "timeout", "retries")


def main(requirement: str = MINIMUM) -> int:
    """Returns the exit status.

    Args:
        requirement: Which PyTorch; one that is there already is kept, whichever it is.
    """
    if find_spec("torch") is not None:
        return 0
    index = os.environ.get("TORCH_INDEX_URL", "")
    if index:
        return pip("install", requirement, "--index-url", index)
    if sys.platform != "linux":
        return pip("install", requirement)
    if local := local_cpu_build(requirement):
        say(f"PyTorch {local} for the CPU lies in a folder that pip looks into; using that.")
        # Its dependencies come from the usual index; a CPU build has none on CUDA.
        return pip("install", f"torch=={local}")
    status = pip("install", requirement, "--index-url", CPU_INDEX, environment=environment_without_other_indexes())
    if status:
        say(
            f"PyTorch for the CPU could not be fetched from {CPU_INDEX}. Set TORCH_INDEX_URL to a mirror of it, or "
            f"install a PyTorch of your choice with `{sys.executable} -m pip install torch` (on Linux that is the CUDA "
            "build, several GB), and run this again."
        )
    return status


def local_cpu_build(requirement: str = MINIMUM) -> str | None:
    """Returns the version of a CPU build that pip finds without any index, or None."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        quiet = ["--quiet", "--quiet", "--quiet"]
        options = [*quiet, "--dry-run", "--no-index", "--no-deps", "--ignore-installed", "--report", str(report)]
        if pip("install", *options, requirement) or not report.is_file():
            return None
        metadata = json.loads(report.read_text("utf-8"))["install"][0]["metadata"]
    cuda = [needed for needed in metadata.get("requires_dist", []) if needed.startswith(("nvidia-", "cuda-", "triton"))]
    return None if cuda else metadata["version"]


def environment_without_other_indexes() -> dict[str, str]:
    """Returns an environment in which pip knows no index but the one it is told on its command line."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"}
    }
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=False
    )
    for line in listing.stdout.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in _KEPT_SETTINGS and key.startswith(("global.", "install.")):
            environment.setdefault("PIP_" + name.upper().replace("-", "_"), value.strip("'\""))
    return {**environment, "PIP_CONFIG_FILE": os.devnull}


def pip(*arguments: str, environment: dict[str, str] | None = None) -> int:
    """Runs pip and returns its exit status."""
    return subprocess.run([sys.executable, "-m", "pip", *arguments], env=environment, check=False).returncode


def say(text: str) -> None:
    """Says a line."""
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
