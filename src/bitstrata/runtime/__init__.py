"""Runs a view: reference.py is the readable truth and the fallback, native.py the fast one."""

from typing import TYPE_CHECKING

from bitstrata.runtime.model import Model as Model
from bitstrata.runtime.model import load as load

if TYPE_CHECKING:
    from bitstrata.runtime.reference import ReferenceSession as ReferenceSession
else:

    def __getattr__(name):  # where the native runtime is used, the other need not be loaded
        if name != "ReferenceSession":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from bitstrata.runtime.reference import ReferenceSession

        globals()[name] = ReferenceSession
        return ReferenceSession
