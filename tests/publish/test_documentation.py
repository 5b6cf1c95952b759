"""docs/publishing.md names flags that exist and files that are there."""

import re
from pathlib import Path

import pytest

from bitstrata.cli.main import main
from bitstrata.limits import MAX_KEY_ROTATIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "publishing.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^bitstrata (push|serve|keygen) ([^#\n]*)", TEXT, re.MULTILINE)


@pytest.mark.parametrize("verb", ["push", "serve", "keygen"])
def test_commands_know_their_flags(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    known = capsys.readouterr().out
    flags = {flag for name, rest in COMMANDS if name == verb for flag in re.findall(r"--[a-z-]+", rest)}
    assert any(name == verb for name, _ in COMMANDS)
    assert not [flag for flag in flags if flag not in known]


def test_links_and_numbers() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert "nginx.conf" in links
    assert all((DOCS / link).exists() for link in links)
    assert f"at most {MAX_KEY_ROTATIONS} at a time" in TEXT
