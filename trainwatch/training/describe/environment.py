"""What this process runs in: versions, devices, machine, variables, code, launcher."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trainwatch.training.describe.code import describe_code
from trainwatch.training.describe.devices import describe_devices
from trainwatch.training.describe.machine import describe_container, describe_machine
from trainwatch.training.describe.packages import versions
from trainwatch.training.describe.parallel import describe_parallel, launcher, scheduler
from trainwatch.training.redaction import learn_secrets, redact, redact_command
from trainwatch.training.safety import Safety

_VARIABLES: Final = re.compile(
    r"CUDA|NVIDIA|NCCL|RCCL|HCCL|CCL_|GLOO|UCX|UCC_|MPI|OMPI|PMI|FI_|EFA|CUBLAS|CUDNN|PYTORCH|TORCH|TRITON|XLA|XPU|ZE_"
    r"|ONEAPI|SYCL|ROCR|HIP|HSA|AMD_|MIOPEN|ASCEND|NPU|OMP_|KMP_|MKL|OPENBLAS|NUMEXPR|MALLOC|TCMALLOC|LD_PRELOAD"
    r"|LD_LIBRARY_PATH|HF_|HUGGING|TRANSFORMERS|DATASETS_|TOKENIZERS|SAFETENSORS|ACCELERATE|FSDP|DEEPSPEED|DS_|PEFT|TRL"
    r"|BNB_|FLASH|XFORMERS|UNSLOTH|LIGER|VLLM|SLURM|PBS_JOBID|LSB_|SM_|KUBERNETES_SERVICE_HOST|RANK$|LOCAL_|WORLD_SIZE"
    r"|GROUP_|ROLE_|NODE_RANK|CROSS_|MASTER_|PYTHONHASHSEED|PYTHONPATH|PYTHONMALLOC|VIRTUAL_ENV|CONDA_DEFAULT_ENV|TRAINWATCH"
)


def describe_environment(model: Any, safety: Safety | None = None) -> dict[str, Any]:
    """Describes this process; plain values, free of secrets.

    Args:
        model: The model in training; its device is the rank's.
        safety: Where a failure of one of the parts is counted; the part is then missing, the others are there.

    Returns:
        ``python``, ``platform``, ``hostname``, ``command``, ``directory``, ``device``, ``launcher``, ``packages``,
        ``variables`` and, where they are known, ``cuda``, ``cudnn``, ``nccl``, ``driver``, ``gpus``, ``scheduler``,
        ``container``, ``cpu``, ``memory`` (bytes), ``limits``, ``git``, ``parallel``.
    """
    safety = safety or Safety()
    learn_secrets(os.environ)
    script = Path(sys.argv[0] or ".").absolute()
    found: dict[str, Any] = {"python": platform.python_version(), "hostname": socket.gethostname()}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "process": lambda: {
            # platform.platform() would look into the interpreter's file for the libc's version
            "platform": f"{platform.system()}-{platform.release()}-{platform.machine()}",
            "command": redact_command(sys.argv),
            "directory": redact(os.getcwd()),
            "launcher": launcher(os.environ),
            "scheduler": scheduler(os.environ),
            "container": describe_container(os.environ),
        },
        "device": lambda: {"device": str(next((parameter.device for parameter in model.parameters()), None))},
        "packages": lambda: {"packages": versions()},
        "devices": describe_devices,
        "machine": describe_machine,
        "code": lambda: {"git": redact(describe_code(script if script.is_file() else Path.cwd()))},
        "parallel": lambda: {"parallel": redact(describe_parallel())},
        "variables": lambda: {
            "variables": {
                name: redact(value, name) for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)
            }
        },
    }
    for name, part in parts.items():
        with safety.guard(f"description of the environment: {name}"):
            found.update((key, value) for key, value in part().items() if value not in (None, "", {}, []))
    return found
