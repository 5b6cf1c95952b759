"""The JSON schema of the manifest: `python tests/format/schema.py` writes docs/format.schema.json anew."""

import json
from pathlib import Path

import msgspec

from bitstrata.format import Manifest

PATH = Path(__file__).resolve().parents[2] / "docs" / "format.schema.json"


def schema() -> str:
    return json.dumps(msgspec.json.schema(Manifest), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(schema(), encoding="utf-8")
