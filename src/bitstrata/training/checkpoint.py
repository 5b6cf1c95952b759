"""Checkpoints: written atomically, checked when read, and refused with a reason when they do not fit.

A checkpoint is a file of `torch.save` that holds plain values and tensors only, and is read as such. It carries a
digest of its own content, so that an altered file is found out, and the layout of its network, so that a checkpoint
of another model is told apart from a damaged one.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitstrata.atomic import write_atomically
from bitstrata.errors import CheckpointDamaged, CheckpointMismatch

FORMAT = "bitstrata-checkpoint"
VERSION = 1


def save_checkpoint(path: str | Path, content: dict[str, Any]) -> None:
    """Writes `content` (plain values and tensors) so that a crash leaves the old file or the new one."""
    whole = {"format": FORMAT, "version": VERSION, **content}
    whole["digest"] = _digest(whole)
    buffer = io.BytesIO()
    torch.save(whole, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint, checked; nothing in the file is executed."""
    path = Path(path)
    if not path.exists():
        raise CheckpointDamaged(f"{path}: there is no such checkpoint")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointDamaged(
            f"{path}: not a readable checkpoint ({_first_line(error)}). Restore it from a copy, or remove it to start "
            f"anew"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointDamaged(f"{path}: this file is not a bitstrata checkpoint")
    if content.get("version") != VERSION:
        raise CheckpointMismatch(f"{path}: checkpoint version {content.get('version')}; this bitstrata reads {VERSION}")
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise CheckpointDamaged(f"{path}: its content was altered since it was written (the digest differs)")
    return content


def layout(model: nn.Module) -> dict[str, list[int]]:
    """The name and shape of every tensor of a model; equal layouts fit each other's checkpoints."""
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def check_layout(path: str | Path, stored: dict[str, list[int]], model: nn.Module) -> None:
    """Refuses a checkpoint of another model, naming the first difference."""
    expected = layout(model)
    for name in expected:
        if name not in stored:
            raise CheckpointMismatch(f"{path} is of another model: it has no tensor {name!r}")
        if stored[name] != expected[name]:
            raise CheckpointMismatch(
                f"{path} is of another model: {name!r} has shape {stored[name]} there and {expected[name]} here"
            )
    extra = [name for name in stored if name not in expected]
    if extra:
        raise CheckpointMismatch(f"{path} is of another model: its tensor {extra[0]!r} has no place here")


def _digest(content: Any) -> str:
    sha = hashlib.sha256()
    _feed(sha, content)
    return sha.hexdigest()


def _feed(sha: Any, value: Any) -> None:
    """Feeds plain values and tensors to a hash, with their types, in order."""
    if isinstance(value, Tensor):
        sha.update(f"tensor {value.dtype} {list(value.shape)}".encode())
        sha.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        sha.update(f"dict {len(value)}".encode())
        for key, item in value.items():
            _feed(sha, key)
            _feed(sha, item)
    elif isinstance(value, (list, tuple)):
        sha.update(f"list {len(value)}".encode())
        for item in value:
            _feed(sha, item)
    else:
        sha.update(f"{type(value).__name__} {json.dumps(value)}".encode())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
