"""`bitstrata bench`: how fast an artifact runs on this machine, where the time goes, and what bounds it."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from bitstrata.atomic import write_atomically
from bitstrata.cli.bench_picture import draw
from bitstrata.cli.output import print_json, print_table, say
from bitstrata.errors import MissingExtra
from bitstrata.runtime.model import has_native

if TYPE_CHECKING:
    from bitstrata.runtime.bench import Layers, Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="ARTIFACT", help="a .strata folder")
    parser.add_argument("--bits", nargs="+", metavar="VIEW", help="widths, or views by name; default: all there are")
    parser.add_argument("--batch", nargs="+", type=positive, default=[1], metavar="B", help="batch sizes (1)")
    parser.add_argument("--threads", nargs="+", type=positive, metavar="N", help="default: all processors")
    parser.add_argument("--size", type=size, metavar="HxW", help="of images; default: as the artifact says")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of measuring each (2)")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the time of every layer beside its limit")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def size(text: str) -> tuple[int, int]:
    """`224x224`, or `224` for a square."""
    found = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, as in 224x224")
    height, width = found.groups()
    return int(height), int(width or height)


def run(arguments: argparse.Namespace) -> None:
    if not has_native():
        raise MissingExtra("bench measures the native extension, which is not installed")
    from bitstrata.runtime.bench import bench

    report = bench(
        arguments.path,
        arguments.bits,
        batches=arguments.batch,
        threads=arguments.threads,
        size=arguments.size,
        seconds=arguments.seconds,
        say=say,
    )
    if arguments.picture is not None:
        write_atomically(arguments.picture, draw(report).encode())
        say(f"the picture is in {arguments.picture}")
    if arguments.json:
        print_json(report.to_dict())
    else:
        _print(report)


def _print(report: Report) -> None:
    machine = report.machine
    channels, height, width = report.shape
    print(f"{report.model}, {channels} x {height} x {width}, kernels for {report.isa}")
    rates = ", ".join(f"{rate / 1e9:.0f} ({_size(size)})" for size, rate in machine.read_bytes.items())
    print(
        f"one thread of this machine, at most: {machine.byte_macs / 1e9:.0f} GMAC/s on bytes, "
        f"{machine.float_macs / 1e9:.0f} on floats; reads {rates} GB/s\n"
    )
    print_table(
        ("view", "threads", "batch", "median ms", "quartiles", "p95", "images/s", "switch ms"),
        [
            (
                speed.view,
                str(speed.threads),
                str(speed.batch),
                _ms(speed.latency.median),
                f"{_ms(speed.latency.lower)} - {_ms(speed.latency.upper)}",
                _ms(speed.latency.p95),
                f"{speed.images_per_second:.1f}",
                _ms(speed.switch_seconds),
            )
            for speed in report.speeds
        ],
    )
    print("\nin a process of its own; preparing is building the session on a model that holds another view")
    print_table(
        ("view", "import ms", "load ms", "first run ms", "peak memory MB", "prepare ms"),
        [
            (
                view,
                _ms(one.import_seconds),
                _ms(one.load_seconds),
                _ms(one.first_seconds),
                "-" if one.peak_bytes is None else f"{one.peak_bytes / 1e6:.1f}",
                _ms(report.prepare_seconds[view]),
            )
            for view, one in report.first_runs.items()
        ],
    )
    for layers in report.layers:
        _print_layers(layers)


def _print_layers(layers: Layers) -> None:
    total = sum(part.seconds for part in layers.parts)
    threads = f"{layers.threads} {'thread' if layers.threads == 1 else 'threads'}"
    print(f"\nview {layers.view}, {threads}, batch {layers.batch}; limit: multiplying one by one, or moving the bytes")
    rows = [
        (
            part.name,
            part.kernel,
            f"{part.macs / 1e6:.1f}" if part.macs else "-",
            f"{part.bytes / 1e3:.0f}",
            f"{1e6 * part.seconds:.1f}",
            f"{part.macs_per_second / 1e9:.1f}" if part.macs else "-",
            f"{part.seconds / total:.1%}",
            f"{1e6 * part.limit_seconds:.1f}",
            f"{part.limit_seconds / part.seconds:.0%}",
        )
        for part in layers.parts
    ]
    macs = sum(part.macs for part in layers.parts)
    limit = sum(part.limit_seconds for part in layers.parts)
    whole = (f"{macs / 1e6:.1f}", "", f"{1e6 * total:.1f}", f"{macs / total / 1e9:.1f}", "100.0%")
    rows.append(("all", "", *whole, f"{1e6 * limit:.1f}", f"{limit / total:.0%}"))
    print_table(("layer", "kernel", "MMAC", "kB", "us", "GMAC/s", "share", "limit us", "of limit"), rows)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if seconds < 0.1 else f"{1000 * seconds:.0f}"


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
