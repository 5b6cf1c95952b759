"""Runs a model's own forward on a traced value, at the widths that its modules are bound to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from bitstrata.capture import elementwise, pooling, shaping
from bitstrata.capture.drafts import Draft
from bitstrata.capture.layers import is_layer, record_layer
from bitstrata.capture.recorder import Recorder, Scope
from bitstrata.capture.sizes import probes_of
from bitstrata.capture.traced import GuardSizes, Traced
from bitstrata.errors import BitstrataError, CannotCapture
from bitstrata.graph.ops import Shape
from bitstrata.training.bound import PerWidth

LOWERINGS = {**elementwise.LOWERINGS, **pooling.LOWERINGS, **shaping.LOWERINGS}

#: What a model's own code raises when it is given a traced value where only a tensor will do.
_UNFOLLOWED = (TypeError, AttributeError, ValueError, RuntimeError, LookupError, AssertionError, ArithmeticError)


def record(view: nn.Module, shape: Shape) -> tuple[list[Draft], list[Draft]]:
    """All drafts of a bound copy, in order of computation, and those of the outputs.

    The copy must have been made for this one purpose: its modules are changed.
    """
    view.eval()
    _check_inputs(view)
    recorder = Recorder(probes_of(shape), LOWERINGS, _tensor_names(view))
    for module, scope in _scopes(view):
        forward = _layer_forward(recorder, module) if is_layer(module) else module.forward
        module.__dict__["forward"] = _in_scope(recorder, scope, forward)
    with GuardSizes():
        result = view.forward(recorder.input)
    recorder.scopes.append(Scope("", type(view).__name__, False))
    return recorder.drafts, [recorder.draft_of(value) for value in _outputs(recorder, result)]


def _check_inputs(view: nn.Module) -> None:
    given = inspect.signature(view.forward).parameters.values()
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [one.name for one in given if one.default is one.empty and one.kind not in open_ended]
    if len(required) > 1:
        raise CannotCapture(
            f"the model ({type(view).__name__}) takes the inputs {', '.join(required)}; a device gives a network one. "
            f"Wrap it in a module that takes one tensor"
        )


def _layer_forward(recorder: Recorder, module: nn.Module) -> Callable[..., Any]:
    return lambda x: record_layer(recorder, module, x)


def _in_scope(recorder: Recorder, scope: Scope, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        recorder.scopes.append(scope)
        try:
            return forward(*args, **kwargs)
        except BitstrataError:
            raise
        except _UNFOLLOWED as error:
            raise CannotCapture(
                f"{scope.described} cannot be followed: {error}. A network is captured by running its code on values "
                f"without numbers; the traceback shows the line that needs them"
            ) from error
        finally:
            recorder.scopes.pop()

    return run


def _scopes(view: nn.Module) -> Iterator[tuple[nn.Module, Scope]]:
    """Every module with its place; what stands in the copies of a `PerWidth` has the place of the original."""
    paths: dict[nn.Module, str] = {}
    for path, module in view.named_modules():
        paths.setdefault(module, path)
        if isinstance(module, PerWidth):
            for copy in module.copies.values():
                for inner, part in copy.named_modules():
                    paths.setdefault(part, ".".join(filter(None, (path, inner))))
    for module, path in paths.items():
        kind = type(module)
        is_one_op = kind.__module__.startswith(("torch.nn.", "bitstrata.training."))
        yield module, Scope(path, kind.__name__, is_one_op)


def _tensor_names(view: nn.Module) -> dict[int, str]:
    held = [*view.named_parameters(remove_duplicate=False), *view.named_buffers(remove_duplicate=False)]
    return {id(tensor): repr(name) for name, tensor in held}


def _outputs(recorder: Recorder, result: Any) -> Iterator[Traced]:
    """The tensors of a result in order, out of tuples, lists and dictionaries."""
    if isinstance(result, Traced):
        yield result
    elif isinstance(result, (list, tuple)):
        for value in result:
            yield from _outputs(recorder, value)
    elif isinstance(result, dict):
        yield from _outputs(recorder, list(result.values()))
    else:
        raise recorder.failure(
            f"returns a {type(result).__name__}, where tensors are expected, or tuples or dicts of them"
        )
