"""A device of the tests' own, where no GPU is: its tensors and generators mix with no others.

A tensor of the device "far" holds one of the CPU, on which everything is computed. As on a GPU, an
operation on tensors of both devices is an error, unless it copies from one to the other or the
near one is a number; so is noise by a generator of the other device.

    python tests/far_device.py < COMMANDS

runs scripts on it, in a process of its own. COMMANDS is JSON, of [fault, script, arguments] each.
Of each are printed the metrics or the device's error; a fault is brought in on purpose.

Source: PyTorch's ``torch.utils.backend_registration`` and ``torch.utils._python_dispatch``.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("far")
FAR, NEAR = torch.device("far", 0), torch.device("cpu")
NearGenerator = torch.Generator
aten = torch.ops.aten
#: operations that copy from one device to another
COPIES = {aten._to_copy.default, aten.copy_.default, aten._foreach_copy_.default}


class WrongDevice(RuntimeError):
    """An operation of tensors or generators of two devices."""


class FarTensor(torch.Tensor):
    """A tensor of the device, with its values in ``near``."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> "FarTensor":
        form = {"strides": near.stride(), "storage_offset": near.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(
            cls, near.shape, dtype=near.dtype, device=FAR, **form
        )
        made.near = near
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self) -> str:
        return f"far {self.near!r}"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(op, args, kwargs or {})


class FarGenerator(NearGenerator):
    """A generator of the device. Operations get another Python object of the same generator, so
    that it is known by the address of that."""

    addresses: dict[int, "FarGenerator"] = {}  # noqa: RUF012 - all of them live on

    def __init__(self) -> None:
        self.addresses[self._cdata] = self

    @property
    def device(self) -> torch.device:
        return FAR


class AnyGenerator(NearGenerator):
    """What ``torch.Generator`` makes, by the device it is asked for."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return FarGenerator() if is_far(device) else NearGenerator(device)


def is_far(device: Any) -> bool:
    """Whether it is this device."""
    return device is not None and torch.device(device).type == "far"


def compute(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation by its near tensors.

    Raises:
        WrongDevice: for tensors or generators of two devices.
    """
    given: dict[int, FarTensor] = {}  # by what they hold, which an operation may return
    near, generators = [], []

    def enter(value: Any) -> Any:
        if isinstance(value, FarTensor):
            given[id(value.near)] = value
            return value.near
        if isinstance(value, torch.Tensor) and value.dim():
            near.append(value)
        elif isinstance(value, NearGenerator):
            generators.append(value._cdata in FarGenerator.addresses)
        elif isinstance(value, torch.device) and is_far(value):
            return NEAR
        return value

    is_result_far = is_far(kwargs["device"]) if kwargs.get("device") else None
    args, kwargs = each(enter, args), {key: each(enter, one) for key, one in kwargs.items()}
    is_result_far = bool(given) if is_result_far is None else is_result_far
    if given and near and op not in COPIES:
        raise WrongDevice(f"{op} takes a tensor {tuple(near[0].shape)} of the CPU beside far ones")
    if any(is_generator_far != is_result_far for is_generator_far in generators):
        raise WrongDevice(f"{op} takes a generator of another device than its tensors")
    result = op(*args, **kwargs)

    def leave(value: Any) -> Any:
        is_new = isinstance(value, torch.Tensor) and id(value) not in given
        return FarTensor(value) if is_new else given.get(id(value), value)

    return each(leave, result) if is_result_far else result


def each(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments or results, of which every one is changed; they are lists and tuples at most."""
    if isinstance(value, list | tuple):
        return type(value)([each(change, one) for one in value])
    return change(value)


class Operations(TorchDispatchMode):
    """All operations, those of the CPU too."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(op, args, kwargs or {})


class Constants(TorchFunctionMode):
    """What reaches no operation: constants made on the device, and lists of its numbers."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if call in (torch.tensor, torch.as_tensor) and is_far(kwargs.get("device")):
            device = kwargs.pop("device")
            return call(*args, **kwargs).to(device)
        if call is torch.Tensor.tolist and isinstance(args[0], FarTensor):
            return call(args[0].near)
        return call(*args, **kwargs)


@contextlib.contextmanager
def far_away() -> Iterator[None]:
    """Where the device is there, and watched."""
    import torch._inductor  # modules that are imported under these modes would be of them

    torch.__future__.set_swap_module_params_on_conversion(True)  # weights change their class
    with mock.patch("torch.Generator", AnyGenerator), Operations(), Constants():
        yield


def faults() -> dict[str, tuple[object, str, Callable[..., Any]]]:
    """Name -> the place, and what stands there in place of the right thing."""
    from ebm_app.training.batches import EBMBatches

    near_batch = EBMBatches.batch
    return {
        "batches stay on the CPU": (
            EBMBatches,
            "batch",
            lambda self, step: tuple(part.cpu() for part in near_batch(self, step)),
        ),
        "noise of the CPU": (
            AnyGenerator,
            "__new__",
            lambda cls, device="cpu": NearGenerator(),
        ),
    }


def run(fault: str, path: str, arguments: list[str]) -> dict[str, Any]:
    """The metrics of a script, or the error of the device."""
    from conftest import load_script

    script = load_script(path)
    if hasattr(script, "resolve_device"):
        script.resolve_device = lambda name: FAR
    with contextlib.ExitStack() as stack:
        if fault:
            stack.enter_context(mock.patch.object(*faults()[fault]))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(far_away())
        try:
            return {"metrics": script.main(arguments)}
        except WrongDevice as error:
            return {"error": str(error)}


def main() -> None:
    """Run the commands."""
    import accelerate
    import diffusers.training_utils  # noqa: F401 - what scripts import late

    torch.set_num_threads(1)
    accelerate.Accelerator.device = property(lambda self: FAR)
    for command in json.load(sys.stdin):
        print(json.dumps(run(*command)), flush=True)


if __name__ == "__main__":
    main()
