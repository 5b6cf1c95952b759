"""A model of the store that runs: it upgrades in place, and may start at the base while more bits are on the way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bitstrata.device.events import Failed, Listener, Ready, nobody
from bitstrata.device.held import HeldArtifact
from bitstrata.device.needs import mean_bits
from bitstrata.device.store import Store
from bitstrata.runtime.model import Model, Runtime


class HeldModel(Model):
    """What `load` gives for a source: a `Model` whose views come to the device when they are asked for."""

    artifact: HeldArtifact

    def __init__(
        self,
        store: Store,
        artifact: HeldArtifact,
        view: str,
        *,
        threads: int | None = None,
        runtime: Runtime | None = None,
        listen: Listener = nobody,
    ) -> None:
        super().__init__(artifact, view, threads=threads, runtime=runtime)
        self.store = store
        self.listen = listen
        self.arriving: Upgrading | None = None
        """The upgrade that goes on in the background, or did."""

    def upgrade(self, view: int | str) -> None:
        super().upgrade(view)
        self.listen(Ready(self.view))

    def downgrade(self, view: int | str, *, prune: bool = False) -> None:
        """As for any model; the record of the store follows, and with `prune` the disk is freed too."""
        super().downgrade(view)
        record, manifest = self.store.records.get(self.artifact.held_name), self.artifact.manifest
        # The record may be of another release by now, or of fewer bits than this model ran at; then it stays.
        if (
            record is not None
            and record.release == self.artifact.release
            and mean_bits(manifest, self.view) <= mean_bits(manifest, record.view)
        ):
            self.store.downgrade(self.artifact.held_name, self.view, prune=prune, listen=self.listen)
        self.listen(Ready(self.view))

    def upgrade_in_background(self, view: int | str) -> Upgrading:
        """Goes to a view in a thread of its own, by way of every uniform view between."""
        self.arriving = Upgrading(self, steps_between(self.artifact, self.view, str(view)))
        return self.arriving

    def _obtain(self, name: str) -> None:
        self.artifact.manifest.view(name)
        self.store.obtain(self.artifact, name, listen=self.listen)


class Upgrading:
    """An upgrade in the background. It ends with the program: what was fetched is found again."""

    def __init__(self, model: HeldModel, steps: Sequence[str]) -> None:
        self.error: Exception | None = None
        self._model = model
        self._steps = steps
        self._thread = threading.Thread(target=self._run, name="bitstrata-upgrade", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is done, or the time is up; raises what stopped it."""
        self._thread.join(timeout)
        if self.error is not None:
            raise self.error
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for step in self._steps:
                self._model.upgrade(step)
        except Exception as error:  # noqa: BLE001 (a thread has nobody above it: `wait` raises it again)
            self.error = error
            self._model.listen(Failed(type(error).__name__, str(error)))


def steps_between(artifact: HeldArtifact, now: str, goal: str) -> list[str]:
    """The uniform views with more bits than one view and fewer than another, in order, and that other."""
    manifest = artifact.manifest
    low, high = mean_bits(manifest, now), mean_bits(manifest, goal)
    uniform = {one.bits[0]: one.name for one in manifest.views if len(set(one.bits)) == 1}
    return [*(uniform[bits] for bits in sorted(uniform) if low < bits < high), goal]
