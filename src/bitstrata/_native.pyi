"""The native kernels, as Python sees them; native/binding.cpp defines them."""

from typing import Any

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
