"""The native kernels, as Python sees them; native/binding_*.cpp define them."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

# Training

def fake_quantise(
    x: Any, steps: Any, out: Any, low: float, high: float, dropped: int, compensated: bool, threads: int
) -> None: ...
def fake_quantise_backward(
    gradient: Any,
    x: Any,
    steps: Any,
    x_gradient: Any,
    step_gradients: Any,
    low: float,
    high: float,
    dropped: int,
    compensated: bool,
    threads: int,
) -> None: ...
def has_thread_pool() -> bool:
    """Whether an OpenMP pool was found in the process; without one kernels run on the calling thread."""

# Runtime. Shapes are (batch, height, width, channels); borders and padding are top, bottom, left, right.

def kernel_names() -> list[str]:
    """The kernels that this processor can run, the preferred first."""

def isa() -> str:
    """The instruction set that new sessions get: avx512, avx2, dotprod, neon or portable."""

def multiply_rate(floats: bool) -> float:
    """Multiply-accumulates per second that one thread of this processor can do at most, of floats or of bytes."""

def read_rate(bytes: int) -> float:
    """Bytes per second that one thread can read from a stretch of that size."""

def worker_count() -> int:
    """How many threads of the runtime's own are running."""

def stop_threads() -> None:
    """Ends the runtime's own threads; later calls run on the calling thread alone."""

def accumulators(
    kernel: str,
    codes: NDArray[Any],
    x: NDArray[Any],
    out: NDArray[Any],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    bits: int,
    source_bits: int,
    zero_point: int,
) -> bool:
    """Writes the accumulators of one quantised layer to `out`; False where the kernel does not take the layer."""

class Buffer:
    def __init__(
        self, offset: int, shape: tuple[int, int, int, int], border: tuple[int, int, int, int], codes: bool
    ) -> None: ...

class Output:
    def __init__(self, buffer: Buffer, inverse_step: float, zero_point: int, top: int) -> None: ...

def code_lines(table: NDArray[Any], most: int, output: Output, activation: str) -> list[tuple[float, float]] | None:
    """Slope and offset of each channel's codes; None where accumulators up to `most` have no such lines."""

class Program:
    """The prepared layers of one view."""

    def add_quantised(
        self,
        codes: NDArray[Any],
        stride: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
        bits: int,
        source_bits: int,
        zero_point: int,
        scale: NDArray[Any],
        bias: NDArray[Any],
    ) -> int: ...
    def add_planes(
        self,
        planes: Sequence[memoryview],
        shape: tuple[int, int, int, int],
        stride: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
        source_bits: int,
        zero_point: int,
        scale: NDArray[Any],
        bias: NDArray[Any],
    ) -> int:
        """A quantised layer of the leading planes of its codes; `prepare` makes it ready."""
    def prepare(self, threads: int) -> None:
        """Prepares all layers of planes, on so many threads."""
    def add_float(
        self,
        weights: NDArray[Any],
        stride: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
        scale: NDArray[Any],
        bias: NDArray[Any],
    ) -> int: ...
    def add_affine(self, scale: NDArray[Any], bias: NDArray[Any]) -> int: ...
    def kernel(self, layer: int) -> str: ...
    def workspace(self, layer: int, shape: tuple[int, int, int, int]) -> int:
        """Bytes of scratch memory for a result (batch, height, width, channels)."""

class Plan:
    """The steps for one input shape."""

    def __init__(self, program: Program, arena_bytes: int, input: tuple[int, int, int, int]) -> None: ...
    def add(
        self,
        kind: str,
        layer: int,
        inputs: Sequence[Buffer],
        residual: Buffer | None,
        activation: str,
        outputs: Sequence[Output],
        parameters: Sequence[int],
        value: float,
        workspace: int,
    ) -> None: ...
    def add_result(self, buffer: Buffer) -> None: ...
    def run(self, x: NDArray[Any], results: Sequence[NDArray[Any]], threads: int) -> None: ...
    def profile(self, x: NDArray[Any], results: Sequence[NDArray[Any]], threads: int) -> list[float]:
        """Runs, and returns the seconds of each step, and last those of writing the results."""
