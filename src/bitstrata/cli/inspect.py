"""`bitstrata inspect`: what lies in an artifact, in numbers and as a picture; works without torch."""

from __future__ import annotations

import argparse
from typing import Any

from bitstrata.atomic import write_atomically
from bitstrata.cli.inspect_picture import draw
from bitstrata.cli.output import print_json, print_table, say
from bitstrata.format import Artifact, describe

_BLOCKS = " ▁▂▃▄▅▆▇█"
#: Codes of more bits than this are too many for a line.
_SHOWN_BITS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="ARTIFACT", help="a .strata folder")
    parser.add_argument("--view", metavar="NAME", help="only this view: its widths, and the codes it computes with")
    parser.add_argument("--picture", metavar="FILE.svg", help="also draw it")


def run(arguments: argparse.Namespace) -> None:
    artifact = Artifact.open(arguments.path)
    if arguments.view is not None:
        artifact.manifest.view(arguments.view)  # refuses a view that is not there before anything else is read
    found = describe(artifact)
    if arguments.picture is not None:
        write_atomically(arguments.picture, draw(found, arguments.view).encode())
        say(f"the picture is in {arguments.picture}")
    if arguments.view is not None:
        found["views"] = {arguments.view: found["views"][arguments.view]}
    if arguments.json:
        print_json(found)
        return
    _print_summary(found)
    print()
    _print_files(found)
    print()
    _print_views(found)
    print()
    _print_layers(found, found["views"][arguments.view]["bits"] if arguments.view is not None else {})


def _print_summary(found: dict[str, Any]) -> None:
    given, information = found["input"], found["information_bytes"]
    channels, height, width = given["shape"]
    print(f"{found['name']}, version {found['version']} (format {found['format_version']})")
    print(f"input        {channels} x {height} x {width}, {len(given['labels'])} labels, crop {given['crop']:g}")
    print(f"widths       {', '.join(map(str, found['widths']))} bits")
    print(
        f"information  {information['all']:,} bytes: {information['codes']:,} of codes, "
        f"{information['float_weights']:,} of float weights, {information['tables']:,} of tables"
    )
    print(f"files        {found['total_bytes']:,} bytes, {found['overhead_percent']:.2f} % more than that")
    print(f"float32      {found['float32_bytes']:,} bytes of parameters, {found['times_smaller']:.2f} times as many")


def _print_files(found: dict[str, Any]) -> None:
    rows = [
        (file, f"{size:,}", f"{size / found['total_bytes']:.1%}", "missing" if file in found["missing_files"] else "")
        for file, size in found["files"].items()
    ]
    print_table(("file", "bytes", "of all", ""), rows)


def _print_views(found: dict[str, Any]) -> None:
    print_table(
        ("view", "mean bits", "strata", "bytes to fetch", "segments only", "smaller than float32"),
        [
            (
                name,
                "-" if one["mean_bits"] is None else f"{one['mean_bits']:.2f}",
                str(len(one["strata"])),
                f"{one['fetched_bytes']:,}",
                f"{one['segment_bytes']:,}",
                f"{one['times_smaller']:.2f} x",
            )
            for name, one in found["views"].items()
        ],
    )


def _print_layers(found: dict[str, Any], bits: dict[str, int]) -> None:
    """Bytes by stratum, and the codes: of the source width, or of the widths of one view."""
    strata = [one["file"] for one in found["strata"]]
    rows = []
    for layer in found["layers"]:
        width = bits.get(layer["name"], found["widths"][-1])
        counts = layer["histograms"].get(str(width))
        rows.append(
            (
                layer["name"],
                "x".join(map(str, layer["shape"])),
                f"{width} bits" if layer["store"] == "planes" else layer["store"] + (", own" if layer["own"] else ""),
                *(f"{layer['bytes'][file]:,}" if file in layer["bytes"] else "-" for file in strata),
                "" if counts is None else _sparkline(counts),
            )
        )
    print_table(("layer", "shape", "stored as", *(file.removesuffix(".safetensors") for file in strata), "codes"), rows)


def _sparkline(counts: list[int]) -> str:
    """How often each code occurs, from the lowest to the highest; what occurs at all can be seen."""
    merged = max(1, len(counts) >> _SHOWN_BITS)
    sums = [sum(counts[index : index + merged]) for index in range(0, len(counts), merged)]
    top = max(sums)
    return "".join(_BLOCKS[-(-count * (len(_BLOCKS) - 1) // top)] for count in sums)
