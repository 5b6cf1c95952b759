"""Runs every test, the long ones included, and writes the result to docs/test-all.md. Called by `make test-all`."""

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "test-all.md"
REPORT = ROOT / "build" / "test-all.xml"

PAGE = """\
# The last run of every test

Written by `make test-all`, which runs what `make test` runs and the tests marked `long`.

| | |
|---|---|
| result | {result} |
| date | {date} |
| commit | {commit} |
| tests | {passed} passed, {failed} failed, {skipped} skipped |
| duration | {duration} |
| machine | {cores} cores, {architecture}, {system} |
| versions | Python {python}, torch {torch}, NumPy {numpy} |
"""


def commit() -> str:
    """The commit that was tested, and whether the files differed from it (this page aside)."""
    run = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        return "none"
    others = ["--", ".", f":(exclude){RESULT.relative_to(ROOT)}"]
    changed = subprocess.run(
        ["git", "status", "--porcelain", *others], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return f"`{run.stdout.strip()}`" + (" with uncommitted changes" if changed else "")


def main(arguments: list[str]) -> int:
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.unlink(missing_ok=True)
    date = datetime.datetime.now(datetime.timezone.utc)
    tested = commit()  # asked first: the tree may change while the tests run
    command = [sys.executable, "-m", "pytest", f"--junitxml={REPORT}", *arguments]
    code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    if code not in (0, 1):  # interrupted, or no tests ran: that says nothing about the project
        return code

    suites = ElementTree.parse(REPORT).getroot().findall("testsuite")
    count = {key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    minutes, seconds = divmod(round(sum(float(suite.get("time", 0)) for suite in suites)), 60)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(
        PAGE.format(
            result="failed" if code else "passed",
            date=date.strftime("%Y-%m-%d %H:%M UTC"),
            commit=tested,
            passed=count["tests"] - failed - count["skipped"],
            failed=failed,
            skipped=count["skipped"],
            duration=f"{minutes} min {seconds} s",
            cores=os.cpu_count(),
            architecture=platform.machine(),
            system=platform.system(),
            python=platform.python_version(),
            torch=metadata.version("torch"),
            numpy=metadata.version("numpy"),
        )
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
