"""`load`: from an artifact to a network that runs at every view it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from bitstrata.errors import BadOption, MissingExtra, UnknownView
from bitstrata.format import Artifact, InputDescription
from bitstrata.graph.network import Floats

Runtime = Literal["native", "reference"]
Session = Callable[[Floats], "Floats | tuple[Floats, ...]"]


def load(
    path: str | Path,
    bits: int | None = None,
    *,
    view: str | None = None,
    threads: int | None = None,
    runtime: Runtime | None = None,
) -> Model:
    """The artifact in the folder `path`, ready to run; only what the chosen view needs is read.

    bits, view      which view `model(x)` runs: a width, or a view by name; by default the highest width
    threads         for one call, by default all processors that this process may use
    runtime         "native" or "reference" (NumPy, exact and slow); by default the native one where it is installed
    """
    if bits is not None and view is not None:
        raise BadOption("give bits= or view=, not both")
    artifact = Artifact.open(path)
    chosen = view if view is not None else str(bits) if bits is not None else _widest(artifact)
    model = Model(artifact, chosen, threads=threads, runtime=runtime)
    model.at(chosen)  # defects show now, not at the first call
    return model


class Model:
    """An artifact whose views run: `model(x)` is the chosen one, `model.at(3)` another.

    Sessions are built when they are first asked for and then kept. All methods may be called from several threads.
    """

    def __init__(
        self, artifact: Artifact, view: str, *, threads: int | None = None, runtime: Runtime | None = None
    ) -> None:
        if runtime is not None and runtime not in get_args(Runtime):
            raise BadOption(f"runtime={runtime!r} is not one of {', '.join(get_args(Runtime))}")
        if threads is not None and threads < 1:
            raise BadOption(f"threads={threads}: at least one is needed")
        self.artifact = artifact
        self.view = view
        self.threads = threads
        self.runtime: Runtime = runtime or ("native" if has_native() else "reference")
        self._sessions: dict[str, Session] = {}
        self._building = threading.Lock()

    def __call__(self, x: Floats) -> Floats | tuple[Floats, ...]:
        """The output for a float32 array (batch, channels, height, width): an array, or a tuple of several."""
        return self.at(self.view)(x)

    def at(self, view: int | str) -> Session:
        """A session of a view, by width or name; pure, and safe to call from any thread."""
        name = str(view)
        session = self._sessions.get(name)  # with no lock: calls go on while another view is being built
        if session is None:
            with self._building:
                session = self._sessions.get(name)
                if session is None:
                    session = self._sessions[name] = self._build(name)
        return session

    def upgrade(self, view: int | str) -> None:
        """Makes a view the one that `model(x)` runs, from the next call on, as soon as it is there and ready.

        Calls go on meanwhile, with the view that they have; every output is of one view alone.
        """
        name = str(view)
        self._obtain(name)
        self.at(name)
        self.view = name

    def downgrade(self, view: int | str) -> None:
        """Makes a view the one that `model(x)` runs, and gives back the memory of all others."""
        name = str(view)
        session = self.at(name)
        self.view = name
        with self._building:
            self._sessions = {name: session}

    def _obtain(self, name: str) -> None:
        """Brings the files of a view to this device where they are not; here they are."""

    @property
    def views(self) -> tuple[str, ...]:
        return self.artifact.views

    @property
    def input(self) -> InputDescription:
        return self.artifact.input

    def _build(self, name: str) -> Session:
        artifact = self.artifact
        if name not in artifact.views:
            raise UnknownView(f"this artifact holds the views {', '.join(artifact.views)}, not {name!r}")
        view = artifact.view(name)
        if self.runtime == "reference":
            from bitstrata.runtime.reference import ReferenceSession

            return ReferenceSession(artifact.graph, artifact.source_bits, view, artifact.codes(view), artifact.floats())
        if not has_native():
            raise MissingExtra("the native extension is not installed; use runtime='reference'")
        from bitstrata.runtime.native import NativeSession

        weights, floats = artifact.packed_codes(view), artifact.floats()
        return NativeSession(artifact.graph, artifact.source_bits, view, weights, floats, threads=self.threads)


def has_native() -> bool:
    """Whether the compiled part is there; `bitstrata doctor` says so too."""
    try:
        from bitstrata import _native  # noqa: F401
    except ImportError:
        return False
    return True


def _widest(artifact: Artifact) -> str:
    """The view of the highest width, or the last one where there are only mixed views."""
    uniform = str(artifact.source_bits)
    return uniform if uniform in artifact.views else artifact.views[-1]
