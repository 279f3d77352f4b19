"""NVIDIA's management library: loading it, asking it, and finding a device in it.

Every call goes through :meth:`Nvml.ask`: an NVML error, a missing library or a driver that went away are all the same
answer, "not available", and never an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trainwatch.probes.visible import Wanted

RETRY_SECONDS: Final = 60.0
# After these the handles are worthless and the library has to be initialised anew. One GPU that fell off the bus is
# none of them: the others still answer.
_GONE: Final = ("NVMLError_Uninitialized", "NVMLError_DriverNotLoaded", "NVMLError_LibRmVersionMismatch")
_ABSENT: Final = (
    "NVMLError_NotSupported",
    "NVMLError_FunctionNotFound",
    "NVMLLibraryMismatchError",  # what pynvml makes of a function that this driver does not have
    "AttributeError",
)


class Nvml:
    """The library, loaded when it is first asked; tried again a minute after it failed, or fell silent.

    Attributes:
        generation: Grows with every initialisation; handles of an older one are void.
        refusal: Name of the error that the last question met; empty when it was answered.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.refusal = ""
        self._module: Any = None
        self._ready = False
        self._retry_at = 0.0
        self._asked = self._answered = False
        self._silent_since = 0.0

    def ready(self, now: float) -> bool:
        """Tells whether NVML answers, initialising it when it is time to.

        Args:
            now: Monotonic seconds.
        """
        if self._ready:
            if self._answered or not self._asked:
                self._asked = self._answered = False
                self._silent_since = now
            # A driver that was reloaded can leave every handle failing without ever saying "uninitialized".
            elif now - self._silent_since >= RETRY_SECONDS:
                self.ask("nvmlShutdown")
                self._ready = False
        if self._ready:
            return True
        if now < self._retry_at:
            return False
        self._retry_at = now + RETRY_SECONDS
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # whatever an odd driver makes of being loaded, it is not available
            return False
        self._module, self._ready = pynvml, True
        self._asked = self._answered = False
        self._silent_since = now
        self.generation += 1
        return True

    def ask(self, name: str, *arguments: Any) -> Any | None:
        """Calls one NVML function.

        Args:
            name: The function's name, as in :mod:`pynvml`.
            *arguments: What it takes.

        Returns:
            Its answer, or None when that is not available; then :attr:`refusal` names the error.
        """
        if not self._ready:
            self.refusal = _GONE[0]
            return None
        self._asked = True
        try:
            answer = getattr(self._module, name)(*arguments)
        except Exception as error:  # NVMLError; also what an older library or a vanished driver makes of a call
            self.refusal = type(error).__name__
            if self.refusal in _GONE:
                self._ready = False
            return None
        self._answered, self.refusal = True, ""
        return answer

    @property
    def refused_for_good(self) -> bool:
        """The device or the library has no such thing as the last question asked for."""
        return self.refusal in _ABSENT

    # -- finding a device ----------------------------------------------------------------------------------------

    def find(self, wanted: Wanted) -> Any | None:
        """Returns the handle of a device; None when there is none, or it is not sure which one it is."""
        if not wanted.uuid:
            return self._by_entry(wanted)
        for prefix in ("GPU-", "MIG-"):
            handle = self.ask("nvmlDeviceGetHandleByUUID", prefix + wanted.uuid)
            if handle is not None:
                # Some versions of CUDA name the whole GPU although the process has a slice of it.
                return handle if prefix == "MIG-" or not self._is_sliced(handle) else self._slice_of(handle, wanted)
        return None

    def uuid(self, handle: Any) -> str:
        """Returns a device's UUID; empty when it is not told."""
        return _text(self.ask("nvmlDeviceGetUUID", handle))

    def _by_entry(self, wanted: Wanted) -> Any | None:
        entry = wanted.entry
        if isinstance(entry, str):
            handle = self._by_uuid(entry)
        elif entry is not None and (wanted.by_bus or self._are_alike()):
            handle = self.ask("nvmlDeviceGetHandleByIndex", entry)
        else:
            handle = None
        if handle is not None and not _is_slice(entry) and self._is_sliced(handle):
            # CUDA shows a process that asks for a whole GPU the first of its slices, and no more than that.
            return next(self._slices(handle), None)
        return handle

    def _by_uuid(self, entry: str) -> Any | None:
        exact = self.ask("nvmlDeviceGetHandleByUUID", entry)
        if exact is not None:
            return exact
        if entry.startswith("MIG-GPU-"):  # the old way: MIG-GPU-UUID/instance/compute instance
            gpu, _, instances = entry.removeprefix("MIG-").partition("/")
            parent = self._by_uuid(gpu)
            for handle in self._slices(parent) if parent is not None else ():
                found = [self.ask(f"nvmlDeviceGet{kind}InstanceId", handle) for kind in ("Gpu", "Compute")]
                if instances == "/".join(map(str, found)):
                    return handle
            return None
        # CUDA takes the beginning of a GPU's UUID when that is enough to tell which one it is.
        found = [handle for handle in self._gpus() if self.uuid(handle).startswith(entry)]
        return found[0] if len(found) == 1 else None

    def _gpus(self) -> Iterator[Any]:
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            handle = self.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                yield handle

    def _are_alike(self) -> bool:
        """Tells whether "the fastest first" is the order of the bus: all GPUs are of one model, and none is sliced."""
        count = self.ask("nvmlDeviceGetCount") or 0
        handles = list(self._gpus())
        if count <= 1 or len(handles) != count:
            return count == len(handles)
        models = {_text(self.ask("nvmlDeviceGetName", handle)) for handle in handles}
        return len(models) == 1 and "" not in models and not any(map(self._is_sliced, handles))

    def _is_sliced(self, handle: Any) -> bool:
        mode = self.ask("nvmlDeviceGetMigMode", handle)
        if mode is None:
            # Not told is not the same as not sliced: the whole GPU's numbers are wrong for a slice.
            return not self.refused_for_good
        return bool(mode[0])

    def _slices(self, handle: Any) -> Iterator[Any]:
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            found = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if found is not None:
                yield found

    def _slice_of(self, handle: Any, wanted: Wanted) -> Any | None:
        if _is_slice(wanted.entry):
            return self._by_uuid(str(wanted.entry))
        slices = list(self._slices(handle))
        return slices[0] if len(slices) == 1 else None


def _is_slice(entry: int | str | None) -> bool:
    return isinstance(entry, str) and entry.startswith("MIG-")


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
