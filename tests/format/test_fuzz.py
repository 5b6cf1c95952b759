"""Random damage: whatever bytes a reader is given, it answers with numbers or with a typed error.

Seconds here; minutes, with more seeds, in the long test.
"""

import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from format.samples import INPUT, network, small_graph

from bitstrata.errors import BitstrataError
from bitstrata.format import check_manifest, decode_manifest
from bitstrata.format.artifact import decode_stratum, decode_view
from bitstrata.format.manifest import encode_manifest
from bitstrata.format.tensors import decode_tensors
from bitstrata.format.writer import encode_artifact

MANIFEST, FILES = encode_artifact(network(small_graph(own=True), mixed=True), name="net", input=INPUT)
SHAPES = check_manifest(MANIFEST)

INTERESTING = (0, 1, -1, 2, 7, 8, 9, 255, 256, 2**24, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30)
STRINGS = (
    "",
    "input",
    "relu",
    "conv",
    "..",
    "a/b",
    "\0",
    "\x1b[31m",
    "\u202e",
    "float32",
    "planes",
    "__metadata__",
    "a" * 200,
)


def mutate_bytes(content: bytes, numbers: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(numbers.choice((1, 1, 2, 4, 8))):
        if not damaged:
            return b""
        place = numbers.randrange(len(damaged))
        match numbers.randrange(6):
            case 0:
                damaged[place] ^= 1 << numbers.randrange(8)
            case 1:
                damaged[place] = numbers.choice(b'0123456789-.eE{}[]",:\\ \x00\xff')
            case 2:
                del damaged[place : place + numbers.randint(1, 64)]
            case 3:
                other = numbers.randrange(len(damaged))
                damaged[place:place] = damaged[other : other + numbers.randint(1, 64)]
            case 4:
                damaged[place:place] = str(numbers.choice(INTERESTING)).encode()
            case 5:
                damaged[:8] = numbers.choice(INTERESTING).to_bytes(16, "little", signed=True)[:8]
    return bytes(damaged)


def mutate_json(value: Any, numbers: random.Random) -> Any:
    """One place of a JSON value changed, so that the damage gets past the parser."""
    if isinstance(value, dict) and value and numbers.random() < 0.9:
        key = numbers.choice(sorted(value))
        if numbers.random() < 0.05:
            return {name: one for name, one in value.items() if name != key}
        return value | {key: mutate_json(value[key], numbers)}
    if isinstance(value, list) and value and numbers.random() < 0.85:
        place = numbers.randrange(len(value))
        match numbers.randrange(8):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value, value[place]]
            case 2:
                return numbers.sample(value, len(value))
            case _:
                return [*value[:place], mutate_json(value[place], numbers), *value[place + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and numbers.random() < 0.7:
        return numbers.choice((value + 1, value - 1, value * 2, -value, *INTERESTING))
    return numbers.choice((*INTERESTING, *STRINGS, None, True, 0.5, 1e300, [], {}, [[]], value))


def judged(read: Callable[[], Any]) -> bool:
    """Whether it was accepted; anything but a typed error with a printable message fails the test."""
    try:
        read()
        return True
    except BitstrataError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 20_000
    return False


def manifest_round(numbers: random.Random) -> bool:
    if numbers.random() < 0.3:
        content = mutate_bytes(FILES["manifest.json"], numbers)
    else:
        value = json.loads(FILES["manifest.json"])
        for _ in range(numbers.choice((1, 1, 2))):
            value = mutate_json(value, numbers)
        content = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )

    def read() -> None:
        manifest = decode_manifest(content)
        shapes = check_manifest(manifest)
        assert encode_manifest(manifest) == content
        # Sound files must be refused or read, whatever this manifest says of them.
        for index, stratum in enumerate(manifest.strata):
            judged(partial(decode_stratum, manifest, index, FILES.get(stratum.file, b"")))
        for view in manifest.views:
            judged(partial(decode_view, manifest, shapes, view.name, FILES.get(view.file, b"")))

    return judged(read)


def file_round(numbers: random.Random) -> bool:
    file = numbers.choice([file for file in FILES if file != "manifest.json"])
    content = FILES[file]
    if numbers.random() < 0.5:
        content = mutate_bytes(content, numbers)
    else:
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.dumps(mutate_json(json.loads(content[8:start]), numbers), separators=(",", ":")).encode()
        header += b" " * (-(8 + len(header)) % 64)
        content = len(header).to_bytes(8, "little") + header + content[start:]
    judged(lambda: decode_tensors(content, file))

    def read() -> None:
        if file.startswith("view"):
            view = decode_view(MANIFEST, SHAPES, file.removeprefix("view-").removesuffix(".safetensors"), content)
            for table in view.tables.values():
                assert np.isfinite(table.scale).all()
                assert table.step is None or table.step > 0
        else:
            index = [stratum.file for stratum in MANIFEST.strata].index(file)
            decode_stratum(MANIFEST, index, content)

    return judged(read)


def rounds(seconds: float, seed: int) -> tuple[int, int]:
    """How many were tried, and how many accepted."""
    numbers = random.Random(seed)
    began, tried, accepted = time.monotonic(), 0, 0
    while time.monotonic() - began < seconds:
        try:
            accepted += (manifest_round if tried % 2 else file_round)(numbers)
        except Exception as error:
            raise AssertionError(f"round {tried} of seed {seed}: {error!r}") from error
        tried += 1
    return tried, accepted


def test_random_damage_for_seconds() -> None:
    tried, accepted = rounds(5, seed=0)
    # It must do something, and some damage must get through to the tables, or it tests the parser of JSON only.
    assert tried > 500
    assert accepted > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 5))
def test_random_damage_for_minutes(seed: int) -> None:
    tried, accepted = rounds(60, seed)
    print(f"{tried} files, {accepted} of them sound")
    assert accepted > 0
