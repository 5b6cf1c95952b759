"""`bitstrata keygen`, `push` and `serve` as people and programs call them."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from publishing import artifact

from bitstrata.cli.main import main
from bitstrata.device.trust import check_release, fingerprint, read_public_key
from bitstrata.format.release import LATEST


def made_key(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["keygen", str(folder / name), "--json"]) == 0
    capsys.readouterr()
    return str(folder / f"{name}.key")


def test_keygen(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["keygen", str(tmp_path / "plain")]) == 0
    shown = capsys.readouterr().out
    public = read_public_key(tmp_path / "plain.pub")
    assert (tmp_path / "plain.pub").read_text().strip() in shown
    assert fingerprint(public) in shown
    assert "not encrypted" in shown
    assert (tmp_path / "plain.key").read_text().splitlines()[1] not in shown
    assert main(["keygen", str(tmp_path / "plain"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "CannotPublish"

    monkeypatch.setenv("BITSTRATA_KEY_PASSPHRASE", "correct horse")
    assert main(["keygen", str(tmp_path / "locked"), "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["encrypted"] is True
    assert read_public_key(found["public_key"]) == read_public_key(found["public_key_file"])
    assert "correct horse" not in printed.out + printed.err


def test_push_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, place = str(artifact(tmp_path)), str(tmp_path / "published")
    assert main(["push", path, place]) == 0
    shown = capsys.readouterr()
    assert f"published small, version 1, at {place}" in shown.out
    assert "not signed" in shown.out
    assert "latest.json" in shown.err.splitlines()[-1]
    assert main(["push", path, place]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_push_signs_and_rotates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "published"
    old, new = made_key(tmp_path, "old", capsys), made_key(tmp_path, "new", capsys)
    assert main(["push", str(artifact(tmp_path)), str(place), "--sign", old, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["signed_by"] == [(tmp_path / "old.pub").read_text().strip()]
    assert first["written_bytes"] == sum(path.stat().st_size for path in place.rglob("*") if path.is_file())

    second = [str(artifact(tmp_path, version=2)), str(place), "--sign", new, "--json"]
    assert main(["push", *second]) == 1
    assert "--rotate-from" in json.loads(capsys.readouterr().out)["message"]
    assert main(["push", *second, "--rotate-from", old, "--spare", str(tmp_path / "old.pub")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["key_set"], found["shared_bytes"] > 0) == (2, 1, True)
    accepted = check_release(
        (place / LATEST).read_bytes(),
        LATEST,
        trusted=read_public_key(tmp_path / "old.pub"),
        held=None,
        next_key_set=lambda number: (place / "keys" / f"{number}.json").read_bytes(),
    )
    assert accepted.key_set is not None
    assert len(accepted.key_set.keys) == 2


def test_push_writes_what_was_measured_into_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, place = artifact(tmp_path), tmp_path / "published"
    accuracy = {"model": "small", "data": "digits", "accuracy": {"2": {"top1": 91.5, "top5": 99.0, "samples": 10}}}
    (tmp_path / "eval.json").write_text(json.dumps(accuracy))
    measured = ["--accuracy", str(tmp_path / "eval.json"), "--address", "https://models.example/small"]
    assert main(["push", str(path), str(place), *measured, "--hub"]) == 0
    text = (place / "README.md").read_text()
    assert "| 91.50 |" in text
    assert "bitstrata pull https://models.example/small --bits 2\n" in text
    assert str(tmp_path) not in text
    assert main(["push", str(path), str(place)]) == 0
    assert (place / "README.md").read_text() == text, "a push that changes nothing forgets nothing"
    assert main(["push", str(path), "s3://bucket/name", "--hub"]) == 1
    capsys.readouterr()


def test_push_warns_of_a_key_that_others_can_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = made_key(tmp_path, "mine", capsys)
    Path(key).chmod(0o644)
    assert main(["push", str(artifact(tmp_path)), str(tmp_path / "published"), "--sign", key]) == 0
    assert "chmod 600" in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [True, False])
def test_serve_prints_its_address_and_serves_until_interrupted(tmp_path: Path, as_json: bool) -> None:
    (tmp_path / LATEST).write_text("{}")
    # What runs in the background may have been told to ignore the signal.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "import sys; from bitstrata.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", str(tmp_path), "--port", "0", *(["--json"] if as_json else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = json.loads(line)["address"] if as_json else line.split(" at ")[1].split()[0]
            with urllib.request.urlopen(f"{address}/{LATEST}", timeout=10) as answer:
                assert answer.read() == b"{}"
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=10)
        assert process.returncode == 130
        assert errors == "interrupted\n"


def test_serve_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "missing")]) == 1
    assert "is no folder" in capsys.readouterr().err
