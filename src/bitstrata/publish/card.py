"""The model card: a README.md as hubs show it, with what each view costs and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bitstrata.errors import CannotPublish
from bitstrata.format import Artifact, describe
from bitstrata.format.release import Release

#: Stands in every card that push wrote: such a card may be written anew.
MARK = "<!-- Written by bitstrata push. Without this line, push leaves the file alone. -->"

_MAX_REPORT_BYTES = 2**26


class _Accuracy(msgspec.Struct, frozen=True):
    top1: float
    top5: float
    samples: int


class AccuracyReport(msgspec.Struct, frozen=True):
    """What the card takes from `bitstrata eval ARTIFACT --json`."""

    data: str
    accuracy: dict[str, _Accuracy]
    model: str | None = None


class _Spread(msgspec.Struct, frozen=True):
    median: float


class _Speed(msgspec.Struct, frozen=True):
    view: str
    batch: int
    threads: int
    latency: _Spread


class LatencyReport(msgspec.Struct, frozen=True):
    """What the card takes from `bitstrata bench ARTIFACT --json`."""

    model: str
    shape: tuple[int, int, int]
    isa: str
    speeds: list[_Speed]

    def fastest_first(self) -> tuple[_Speed, dict[str, float]]:
        """The smallest batch on the fewest threads that was measured, and the seconds of each view with it."""
        first = min(self.speeds, key=lambda speed: (speed.batch, speed.threads))
        alike = [one for one in self.speeds if (one.batch, one.threads) == (first.batch, first.threads)]
        return first, {one.view: one.latency.median for one in alike}


@dataclass(frozen=True)
class Facts:
    """What a card tells that is not in the artifact."""

    accuracy: AccuracyReport | None = None
    latency: LatencyReport | None = None
    address: str | None = None
    """Where people will fetch it from."""


def read_facts(
    name: str, accuracy: str | Path | None = None, latency: str | Path | None = None, address: str | None = None
) -> Facts:
    """Reads the reports about the model `name`; one about another model is refused."""
    measured = None if accuracy is None else _read(accuracy, AccuracyReport, "bitstrata eval ARTIFACT --json")
    timed = None if latency is None else _read(latency, LatencyReport, "bitstrata bench ARTIFACT --json")
    for path, report in ((accuracy, measured), (latency, timed)):
        if report is not None and report.model not in (None, name):
            raise CannotPublish(f"{path} is about {report.model!a}, and the artifact is {name!r}")
    if timed is not None and not timed.speeds:
        raise CannotPublish(f"{latency} holds no measurement")
    return Facts(measured, timed, address)


def card(artifact: Artifact, release: Release, facts: Facts, *, signed: bool) -> str:
    """The text of the card; the same for the same artifact and facts."""
    found = describe(artifact)
    address = facts.address or "ADDRESS"
    parts = [
        _front_matter(release.name),
        MARK,
        f"# {release.name}\n\n{_summary(found, release)}",
        f"## What each view costs, and what it is worth\n\n{_views(found, facts)}",
        f"## How to run it\n\n{_usage(found, address, signed, known=facts.address is not None)}",
        f"## Files\n\n{_files(found)}",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(name: str) -> str:
    # Names are letters, digits and _ . @ -; in quotes, because a name such as `1.0` or `yes` would be something else.
    tags = "".join(f"\n  - {tag}" for tag in ("bitstrata", "quantized", "low-bit", "mixed-precision"))
    return f'---\nlibrary_name: bitstrata\nmodel_name: "{name}"\npipeline_tag: image-classification\ntags:{tags}\n---'


def _summary(found: dict[str, Any], release: Release) -> str:
    widths = [str(bits) for bits in found["widths"]]
    listed = f"{', '.join(widths[:-1])} and {widths[-1]}" if len(widths) > 1 else widths[0]
    channels, height, width = found["input"]["shape"]
    labels = len(found["input"]["labels"])
    return (
        f"Version {release.version}. One network, stored as bit planes: it runs with {listed} bits for weights and "
        f"activations, from one\ncopy of its weights. A device fetches the base, runs, and fetches more planes when it "
        f"wants better.\n\n"
        f"Input: {channels} x {height} x {width}" + (f"; {labels} classes." if labels else ".")
    )


def _views(found: dict[str, Any], facts: Facts) -> str:
    header, unit = ["view", "bits (mean)", "to fetch, bytes", "of float32"], []
    accuracy = facts.accuracy
    if accuracy is not None:
        header += ["top-1, %", "top-5, %"]
    seconds: dict[str, float] = {}
    if facts.latency is not None:
        speed, seconds = facts.latency.fastest_first()
        header.append("latency, ms")
        threads = f"{speed.threads} {'thread' if speed.threads == 1 else 'threads'}"
        shape = " x ".join(map(str, facts.latency.shape))
        unit.append(
            f"Latency is the median for a batch of {speed.batch} of {shape}, {threads}, kernels for "
            f"{_text(facts.latency.isa)} (`bitstrata bench`)."
        )
    rows = []
    for name, view in found["views"].items():
        mean = "-" if view["mean_bits"] is None else f"{view['mean_bits']:g}"
        # Views of one width fetch whole strata, mixed ones the segments that they compute with.
        fetched = view["segment_bytes" if len({*view["bits"].values()}) > 1 else "fetched_bytes"]
        cells = [name, mean, f"{fetched:,}", f"{fetched / found['float32_bytes']:.1%}"]
        if accuracy is not None:
            one = accuracy.accuracy.get(name)
            cells += ["-", "-"] if one is None else [f"{one.top1:.2f}", f"{one.top5:.2f}"]
        if facts.latency is not None:
            cells.append(f"{1000 * seconds[name]:.3f}" if name in seconds else "-")
        rows.append(cells)
    if accuracy is not None and accuracy.accuracy:
        samples = max(one.samples for one in accuracy.accuracy.values())
        unit.insert(0, f"Accuracy is on {samples:,} test samples of {_text(accuracy.data)} (`bitstrata eval`).")
    notes = [
        "What is fetched is counted with the manifest; a view that shares planes with one that is held fetches less."
    ]
    return _table(header, rows) + "\n\n" + "\n".join([*unit, *notes])


def _usage(found: dict[str, Any], address: str, signed: bool, *, known: bool) -> str:
    name, widths = found["name"], found["widths"]
    trust = " --trust KEY.pub" if signed else ""
    lines = [
        "```sh",
        "pip install bitstrata",
        f"bitstrata pull {address} --bits {widths[0]}{trust}",
        *([f"bitstrata upgrade {name} --bits {widths[-1]}"] if len(widths) > 1 else []),
        "```",
        "",
        "```python",
        "import bitstrata",
        "",
        f'model = bitstrata.load("{address}", bits={widths[0]})',
        "scores = model(x)  # NumPy in, NumPy out",
        "```",
    ]
    if not known:
        lines += ["", "`ADDRESS` is where this folder is served: `https://...`, `s3://...` or `hf://org/name`."]
    if signed:
        lines += [
            "",
            "The release is signed. `KEY.pub` is the publisher's public key: get it from elsewhere than here.",
        ]
    return "\n".join(lines)


def _files(found: dict[str, Any]) -> str:
    rows = [[f"`{file}`", f"{size:,}"] for file, size in found["files"].items()]
    rows.append(["all", f"{found['total_bytes']:,}"])
    text = _table(["file", "bytes"], rows)
    return (
        f"{text}\n\nThe same network in float32 takes {found['float32_bytes']:,} bytes. Published, files are named by "
        f"the sha256 of\ntheir content, and every byte is checked before it is used."
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    """The first column names the row, the others are numbers."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _text(text: str) -> str:
    """Text of a report, as one line that cannot break out of its place."""
    return "".join(one if one.isalnum() or one in " .,:+-_/" else " " for one in text)[:100].strip()


def _read(path: str | Path, kind: Any, command: str) -> Any:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_REPORT_BYTES)
        return msgspec.json.decode(content, type=kind)
    except OSError as error:
        raise CannotPublish(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CannotPublish(f"{path} is not what `{command}` prints: {str(error)[:200]!a}") from None
