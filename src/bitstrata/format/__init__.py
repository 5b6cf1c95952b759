"""The artifact: its manifest, a strict reader, a writer, and verification. docs/format.md is its specification.

What only reads an artifact does not load what writes, verifies and describes one: those names load at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bitstrata.format.artifact import Artifact as Artifact
from bitstrata.format.input_description import InputDescription as InputDescription
from bitstrata.format.layout import MANIFEST as MANIFEST
from bitstrata.format.manifest import Manifest as Manifest
from bitstrata.format.manifest import check_manifest as check_manifest
from bitstrata.format.manifest import decode_manifest as decode_manifest

if TYPE_CHECKING:
    from bitstrata.format.inventory import describe as describe
    from bitstrata.format.verification import Verification as Verification
    from bitstrata.format.verification import verify_artifact as verify_artifact
    from bitstrata.format.views import add_view as add_view
    from bitstrata.format.writer import write_artifact as write_artifact
else:
    _LAZY = {
        "Verification": "verification",
        "add_view": "views",
        "describe": "inventory",
        "verify_artifact": "verification",
        "write_artifact": "writer",
    }

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
        return value
