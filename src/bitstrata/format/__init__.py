"""The artifact: its manifest, a strict reader, a writer, and verification. docs/format.md is its specification."""

from bitstrata.format.artifact import Artifact as Artifact
from bitstrata.format.input_description import InputDescription as InputDescription
from bitstrata.format.inventory import describe as describe
from bitstrata.format.layout import MANIFEST as MANIFEST
from bitstrata.format.manifest import Manifest as Manifest
from bitstrata.format.manifest import check_manifest as check_manifest
from bitstrata.format.manifest import decode_manifest as decode_manifest
from bitstrata.format.verification import Verification as Verification
from bitstrata.format.verification import verify_artifact as verify_artifact
from bitstrata.format.writer import write_artifact as write_artifact
