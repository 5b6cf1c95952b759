"""Reads pickles of plain values and byte arrays, and refuses all others.

The CIFAR files are pickles from a stranger, and a pickle may call anything it can name. Here it can name four things,
each of them a stand-in of ours without power: not even NumPy's own code sees the contents before they are checked.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitstrata.errors import BadData

LARGEST_FILE_BYTES = 512 * 2**20
"""CIFAR-100's training file has 148 MiB, and half as much again when Python 3 has re-saved it as protocol 2."""


class _ElementType:
    """Stands for numpy.dtype; only bytes will be accepted."""

    __slots__ = ("name",)

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = as_text(name)

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment mean nothing for single bytes."""


class _Array:
    """Stands for the array that numpy's `_reconstruct` makes; its state brings shape, type and contents."""

    __slots__ = ("value",)

    def __init__(self, *_: Any) -> None:
        self.value: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, element_type, is_fortran_order, contents = state
        if not isinstance(element_type, _ElementType) or element_type.name != "u1":
            raise pickle.UnpicklingError("it holds an array of something else than bytes")
        if not isinstance(shape, tuple) or not all(type(extent) is int and extent >= 0 for extent in shape):
            raise pickle.UnpicklingError("it holds an array whose shape is not made of counts")
        if is_fortran_order or not isinstance(contents, bytes) or len(contents) != math.prod(shape):
            raise pickle.UnpicklingError("it holds an array whose contents do not fit its shape")
        self.value = np.frombuffer(contents, dtype=np.uint8).reshape(shape)


class _Encode:
    """Stands for _codecs.encode, by which Python 3 writes bytes in old protocols."""

    # Nothing can be set on an instance: the pickle cannot leave anything behind in it.
    __slots__ = ()

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise pickle.UnpicklingError("it encodes something else than latin1 text")
        return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    # The old and the new home of the same function.
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _ElementType,
    ("_codecs", "encode"): _Encode(),
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return _ADMITTED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}, which no such file needs: it may be hostile"
            ) from None


def as_text(value: Any) -> str:
    """Text, whether Python 2 wrote it (then it arrives as bytes) or Python 3."""
    if isinstance(value, bytes):
        return value.decode("latin1")
    if isinstance(value, str):
        return value
    raise pickle.UnpicklingError(f"it holds {type(value).__name__} where text is expected")


def read_pickled_dictionary(path: Path) -> dict[str, Any]:
    """The dictionary a file holds, by text keys; arrays are read-only arrays of bytes, text is as it was written."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise BadData(f"{path}: larger than {LARGEST_FILE_BYTES} bytes, so not a file of this kind")
        with path.open("rb") as file:
            content = _RestrictedUnpickler(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds {type(content).__name__}, not a dictionary")
        return {as_text(key): value.value if isinstance(value, _Array) else value for key, value in content.items()}
    except BadData:
        raise
    except OSError as error:
        raise BadData(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # A damaged or hostile pickle can make the unpickler raise any type of exception.
        raise BadData(f"{path}: not a pickle that is safe to read: {error}") from error
