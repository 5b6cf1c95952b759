"""The knapsack against brute force on small instances, and against a MILP solver on networks of real sizes."""

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from bitstrata.allocation.knapsack import least_error
from bitstrata.errors import BadBudget, BadOption
from bitstrata.training.stratify import stratify
from bitstrata.zoo import nets

Instance = tuple[list[list[int]], list[list[float]], int]


def brute_force(costs: list[list[int]], errors: list[list[float]], budget: int) -> tuple[float, int]:
    """The least error within the budget, and the least cost of it; errors are summed exactly."""
    return min(
        (math.fsum(errors[i][p] for i, p in enumerate(places)), sum(costs[i][p] for i, p in enumerate(places)))
        for places in itertools.product(*(range(len(layer)) for layer in costs))
        if sum(costs[i][p] for i, p in enumerate(places)) <= budget
    )


def value(costs: list[list[int]], errors: list[list[float]], places: tuple[int, ...]) -> tuple[float, int]:
    return math.fsum(layer[p] for layer, p in zip(errors, places, strict=True)), sum(
        layer[p] for layer, p in zip(costs, places, strict=True)
    )


#: Quarters add up without rounding, so that ties are ties; the others are any floats.
QUARTERS = st.integers(0, 12).map(lambda quarters: quarters / 4)
ERRORS = st.one_of(QUARTERS, st.floats(0, 1e6, allow_subnormal=False))


@st.composite
def instances(draw: st.DrawFn, errors: st.SearchStrategy[float] = ERRORS) -> Instance:
    """Up to 3000 choices: widths of 2 to 8 bits, or options of any cost; errors in any order."""
    count = draw(st.integers(1, 6))
    options = draw(st.integers(1, {1: 7, 2: 7, 3: 7, 4: 7, 5: 4, 6: 3}[count]))
    unit = draw(st.sampled_from([1, 1, 16, 1000]))
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
        costs = [[unit * size * (2 + width) for width in range(options)] for size in sizes]
    else:
        row = st.lists(st.integers(0, 40).map(lambda cost: unit * cost), min_size=options, max_size=options)
        costs = draw(st.lists(row, min_size=count, max_size=count))
    row_of_errors = st.lists(errors, min_size=options, max_size=options)
    table = draw(st.lists(row_of_errors, min_size=count, max_size=count))
    lowest, highest = sum(map(min, costs)), sum(map(max, costs))
    return costs, table, draw(st.integers(lowest, highest + 3))


@settings(max_examples=600, deadline=None)
@given(instances())
def test_no_choice_within_the_budget_has_less_error(instance: Instance) -> None:
    costs, errors, budget = instance
    best, _ = brute_force(costs, errors, budget)
    found, cost = value(costs, errors, least_error(costs, errors, budget))
    assert cost <= budget
    assert found == pytest.approx(best, rel=1e-12, abs=1e-12)


@settings(max_examples=300, deadline=None)
@given(instances(QUARTERS))
def test_of_equal_errors_the_cheapest(instance: Instance) -> None:
    costs, errors, budget = instance
    assert value(costs, errors, least_error(costs, errors, budget)) == brute_force(costs, errors, budget)


def test_all_errors_zero_takes_the_lowest_widths() -> None:
    assert least_error([[2, 3, 4], [20, 30, 40]], [[0.0] * 3] * 2, 44) == (0, 0)


def test_a_width_that_is_worse_than_a_lower_one_is_never_taken() -> None:
    assert least_error([[2, 3, 4]], [[1.0, 5.0, 0.5]], 3) == (0,)
    assert least_error([[2, 3, 4]], [[1.0, 5.0, 0.5]], 4) == (2,)


def test_no_layers_cost_nothing() -> None:
    assert least_error([], [], 0) == ()


def test_a_budget_below_the_lowest_widths_is_refused_with_the_least_there_is() -> None:
    with pytest.raises(BadBudget, match="the least that is possible is 2,200"):
        least_error([[200, 300], [2000, 3000]], [[1.0, 0.0]] * 2, 2199)
    assert least_error([[200, 300], [2000, 3000]], [[1.0, 0.0]] * 2, 2200) == (0, 0)


def test_tables_of_other_sizes_are_refused() -> None:
    with pytest.raises(BadOption, match="costs of 1 layers and errors of 2"):
        least_error([[1]], [[0.0], [0.0]], 5)
    with pytest.raises(BadOption, match="layer 0 has 2 costs and 1 errors"):
        least_error([[1, 2]], [[0.0]], 5)
    with pytest.raises(BadOption, match="not finite"):
        least_error([[1, 2]], [[0.0, math.nan]], 5)


# Networks of real sizes


def sizes_of(name: str) -> list[int]:
    net = stratify(nets.build(name, classes=1000), (2, 3, 4))
    return [layer.weight.numel() for _, layer in net.stratified_layers()]


@pytest.fixture(scope="module")
def sizes() -> dict[str, list[int]]:
    return {name: sizes_of(name) for name in ("resnet50", "mobilenet_v2")}


def with_milp(costs: np.ndarray, errors: np.ndarray, budget: int) -> float:
    """The least error by HiGHS: a yes or no for each layer and width, one yes for each layer."""
    layers, widths = costs.shape
    unit = int(np.gcd.reduce((costs - costs[:, :1]).reshape(-1)))
    above = (costs - costs[:, :1]) // unit
    scale = errors.max()
    one_each = np.kron(np.eye(layers), np.ones(widths))
    result = milp(
        (errors / scale).reshape(-1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(above.reshape(1, -1), -np.inf, (budget - costs[:, 0].sum()) // unit),
        ],
        integrality=np.ones(layers * widths),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    assert result.success, result.message
    places = result.x.reshape(layers, widths).argmax(1)
    rows = np.arange(layers)
    assert costs[rows, places].sum() <= budget
    return float(errors[rows, places].sum())


def realistic(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Four times the error for each bit less, on weights whose spread falls as layers grow."""
    spread = rng.uniform(0.5, 2.0, len(counts)) / np.sqrt(counts)
    return np.stack([counts * spread**2 * (4.0**dropped - 1) for dropped in (2, 1, 0)], axis=1)


def random(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0, 1, (len(counts), 3))


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
@pytest.mark.parametrize("kind", [realistic, random])
def test_equal_to_a_milp_solver_and_quick(name: str, kind: object, sizes: dict[str, list[int]]) -> None:
    counts = np.array(sizes[name])
    assert len(counts) >= 50
    costs = counts[:, None] * np.array([2, 3, 4])
    errors = kind(counts, np.random.default_rng(7))  # type: ignore[operator]
    for bits in (2.03, 2.5, 3.0, 3.61):
        budget = int(bits * counts.sum())
        started = time.perf_counter()
        places = least_error(costs.tolist(), errors.tolist(), budget)
        seconds = time.perf_counter() - started
        found, cost = value(costs.tolist(), errors.tolist(), places)
        assert cost <= budget
        # The solver's own tolerance on its objective is a millionth of the largest error.
        assert found == pytest.approx(with_milp(costs, errors, budget), abs=1e-6 * errors.max())
        assert seconds < 1.0, f"{name} at {bits} bits took {seconds:.2f} s"


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_equal_errors_per_bit_are_as_quick(name: str, sizes: dict[str, list[int]]) -> None:
    """Where the relaxation says nothing: every bit is worth the same, so any full budget is as good."""
    counts = np.array(sizes[name])
    costs = counts[:, None] * np.array([2, 3, 4])
    errors = counts[:, None] * np.array([2.0, 1.0, 0.0])
    unit = np.gcd.reduce(counts)
    for bits in np.linspace(2, 4, 9):
        budget = int(bits * counts.sum())
        started = time.perf_counter()
        found, cost = value(costs.tolist(), errors.tolist(), least_error(costs.tolist(), errors.tolist(), budget))
        assert time.perf_counter() - started < 1.0
        assert found == 4 * counts.sum() - cost
        assert cost > budget - 20 * unit
