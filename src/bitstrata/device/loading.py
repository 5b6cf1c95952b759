"""`load`: a network ready to run, from wherever it is published; or from an artifact, which is a folder here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bitstrata.device.events import Listener, nobody
from bitstrata.errors import BadOption, MissingFile, WrongSignature
from bitstrata.format import layout
from bitstrata.runtime import model as runtime_model
from bitstrata.runtime.model import Model, Runtime

if TYPE_CHECKING:  # what only a store needs is imported when there is one: an artifact runs without
    from bitstrata.device.home import Home
    from bitstrata.device.records import Record
    from bitstrata.device.store import Store


def load(
    source: str | Path,
    bits: int | None = None,
    *,
    view: str | None = None,
    then: int | str | None = None,
    trust: str | Path | None = None,
    version: int | None = None,
    threads: int | None = None,
    runtime: Runtime | None = None,
    home: Home | str | Path | None = None,
    listen: Listener = nobody,
) -> Model:
    """A model, ready to run. What this device holds is used as it is, with no network; `bitstrata pull` updates.

    source          an artifact (a folder), a model that is held (its name), or where one is published: a path,
                    http(s)://, s3://bucket/prefix, hf://org/name@revision
    bits, view      which view `model(x)` runs: a width, or a view by name; by default the one held, else for an
                    artifact the highest width and for a source the base
    then            a width or view to upgrade to in the background, step by step, while the model runs already
    trust           a public key, or a file with one: only what it has signed is accepted, now and later
    version         of the model; by default the newest, when it is first fetched
    threads         for one call, by default all processors that this process may use
    runtime         "native" or "reference" (NumPy, exact and slow); by default the native one where it is installed
    home            the store; by default as BITSTRATA_HOME says
    listen          called with an event (`bitstrata.device.events`) for each step of fetching and upgrading
    """
    if bits is not None and view is not None:
        raise BadOption("give bits= or view=, not both")
    wanted = view if view is not None else str(bits) if bits is not None else None
    if (Path(source) / layout.MANIFEST).is_file():
        if trust is not None or version is not None:
            raise BadOption(
                f"{source} is an artifact on this device, with no releases and signatures: publish it first"
            )
        found = runtime_model.load(source, bits, view=view, threads=threads, runtime=runtime)
        if then is not None:
            found.upgrade(then)
        return found
    from bitstrata.device.running import HeldModel
    from bitstrata.device.store import Store

    key = None
    if trust is not None:
        from bitstrata.device.trust import read_public_key

        key = read_public_key(trust)
    store = Store(home)
    while True:
        record = _held(store, str(source), wanted, version, key, listen)
        artifact = store.open(record.name)
        model = HeldModel(store, artifact, wanted or record.view, threads=threads, runtime=runtime, listen=listen)
        try:
            model.at(model.view)  # defects show now, not at the first call
            break
        except MissingFile:
            # Reading waits for nobody: another process may have replaced the model and cleaned up.
            if store.records.get(record.name) == record:
                raise
    if then is not None:
        model.upgrade_in_background(then)
    return model


def _held(
    store: Store, source: str, wanted: str | None, version: int | None, trust: bytes | None, listen: Listener
) -> Record:
    """The record of the source, with the view that is wanted; fetched where it is not held."""
    record = store.records.get(source) or _by_source(store, source)
    if record is None or (version is not None and record.release.version != version):
        return store.pull(source, wanted, version=version, trust=trust, listen=listen)
    if trust is not None and (record.trusted is None or trust not in record.trusted.keys):
        if record.trusted is not None:
            raise WrongSignature(f"other keys are pinned for {record.name} than the one given")
        return store.pull(source, wanted, trust=trust, listen=listen)
    if wanted is not None and wanted not in store.held_views(record.name):
        store.obtain(store.open(record.name), wanted, listen=listen)
        return store.records.of(record.name)
    return record


def _by_source(store: Store, source: str) -> Record | None:
    from bitstrata.device.open_source import open_source

    address = open_source(source).address
    return next((record for record in store.models() if record.source == address), None)
