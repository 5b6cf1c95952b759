"""Fetching from the Hugging Face hub: `hf://organisation/name@revision`, as plain files over https."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from bitstrata.device.access import Secrets, bearer
from bitstrata.device.http import HttpSource
from bitstrata.device.pace import Patience
from bitstrata.errors import BadSource

TOKEN = "HF_TOKEN"  # noqa: S105 (the name of a variable)
ENDPOINT = "HF_ENDPOINT"

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,95}"
_ADDRESS = re.compile(rf"hf://(?P<model>{_PART}/{_PART})(@(?P<revision>{_PART}(/{_PART}){{0,7}}))?/?")


def hub_source(text: str, patience: Patience | None = None) -> HttpSource:
    """A model on the hub, at a branch, tag or commit; only a commit never changes."""
    found = _ADDRESS.fullmatch(text)
    if not found:
        raise BadSource(f"{text[:200]!a} is not of the form hf://organisation/name or hf://organisation/name@revision")
    model, revision = found["model"], found["revision"] or "main"
    endpoint = os.environ.get(ENDPOINT, "").strip().rstrip("/") or "https://huggingface.co"
    secrets = Secrets(bearer(TOKEN), f"there may be no such model, or it is private or gated: set {TOKEN}")
    return HttpSource(
        f"{endpoint}/{model}/resolve/{quote(revision, safe='')}",
        address=f"hf://{model}@{revision}",
        secrets=secrets,
        patience=patience,
    )
