"""The engines that benchmarks/peers.py and footprint.py compare: how each gets the same float network, and runs it.

A folder holds one network in all forms: `prepare` writes it once, `open_engine` makes a callable of one form. An engine
that is not installed, or cannot take a network, raises; the caller says so and goes on without it.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WIDTHS = (2, 3, 4)
SIZES = {"resnet18": 224, "resnet50": 224, "mobilenet_v2": 224, "resnet20": 32}
#: The newest that all the engines here read.
OPSET = 17
CALIBRATION_BATCHES = 4

Call = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Engine:
    name: str
    precision: str
    modules: tuple[str, ...]
    """What must be importable; the first one's version is shown."""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.precision}"


OURS = tuple(Engine("bitstrata", f"{bits} bits", ("bitstrata",)) for bits in WIDTHS)
PEERS = (
    Engine("PyTorch", "float32", ("torch",)),
    Engine("PyTorch FX x86", "int8", ("torch",)),
    Engine("PyTorch FX onednn", "int8", ("torch",)),
    Engine("ONNX Runtime", "float32", ("onnxruntime", "onnx")),
    Engine("ONNX Runtime QDQ", "int8", ("onnxruntime", "onnx")),
    Engine("OpenVINO", "float32", ("openvino", "onnx")),
    Engine("OpenVINO NNCF", "int8", ("openvino", "onnx", "nncf")),
    Engine("OpenVINO QDQ", "int8", ("openvino", "onnxruntime", "onnx")),
)

#: What keeps engines to an older instruction set, for measuring as on a processor that has no more; and the engines
#: that no variable reaches, which must be left out then.
ISA_VARIABLES = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "BITSTRATA_KERNELS": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # OpenVINO's too
    }
}
ISA_UNREACHED = ("PyTorch FX x86", "ONNX Runtime", "ONNX Runtime QDQ")


def version(engine: Engine) -> str | None:
    """Of what is installed; None where something is missing."""
    try:
        found = [importlib.import_module(name) for name in engine.modules]
    except ImportError:
        return None
    return str(found[0].__version__).split("-")[0]


def batch(net: str, size: int, seed: int) -> np.ndarray:
    side = SIZES[net]
    return np.random.default_rng(seed).standard_normal((size, 3, side, side), dtype=np.float32)


def float_net(net: str) -> Any:
    """Random weights, the same in every process, with norms that have seen random batches: no denormals anywhere."""
    import torch

    from bitstrata.zoo import nets

    torch.manual_seed(0)
    model = nets.build(net)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    model.train()
    with torch.no_grad():
        for seed in range(CALIBRATION_BATCHES):
            model(torch.from_numpy(batch(net, 8, seed)))
    return model.eval()


def prepare(net: str, folder: Path, batches: tuple[int, ...]) -> dict[str, str]:
    """Writes the artifact and the ONNX files; what failed, by engine."""
    folder.mkdir(parents=True, exist_ok=True)
    model = float_net(net)
    failed: dict[str, str] = {}
    _write_artifact(net, model, folder)
    steps: tuple[tuple[str, tuple[str, ...], Callable[[int], None]], ...] = (
        ("ONNX", ("onnx",), lambda size: _export(net, model, folder, size)),
        ("ONNX Runtime QDQ", ("onnx", "onnxruntime"), lambda size: _quantise_qdq(net, folder, size)),
        ("OpenVINO NNCF", ("onnx", "openvino", "nncf"), lambda size: _quantise_nncf(net, folder, size)),
    )
    for size in batches:
        for name, modules, step in steps:
            if version(Engine(name, "", modules)) is None:
                continue
            try:
                step(size)
            except Exception as error:  # noqa: BLE001 (a peer's; whatever it is, the others go on)
                failed[f"{name}, batch {size}"] = short(error)
    return failed


def _write_artifact(net: str, model: Any, folder: Path) -> None:
    import copy

    import torch

    import bitstrata

    stratified = bitstrata.stratify(copy.deepcopy(model), widths=WIDTHS)
    stratified.calibrate([torch.from_numpy(batch(net, 8, seed)) for seed in range(CALIBRATION_BATCHES)])
    bitstrata.pack(stratified.eval(), artifact(folder, net), example=torch.from_numpy(batch(net, 1, 0)))


def artifact(folder: Path, net: str) -> Path:
    return folder / f"{net}.strata"


def onnx_file(folder: Path, size: int, kind: str) -> Path:
    return folder / f"{kind}-batch{size}.onnx"


def _export(net: str, model: Any, folder: Path, size: int) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter that needs no further package
        torch.onnx.export(
            model,
            (torch.from_numpy(batch(net, size, 0)),),
            str(onnx_file(folder, size, "float")),
            opset_version=OPSET,
            input_names=["input"],
            output_names=["output"],
            dynamo=False,
        )


def _quantise_qdq(net: str, folder: Path, size: int) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.inputs = iter([{"input": batch(net, size, seed)} for seed in range(CALIBRATION_BATCHES)])

        def get_next(self) -> Any:
            return next(self.inputs, None)

    ready = onnx_file(folder, size, "ready")
    quant_pre_process(str(onnx_file(folder, size, "float")), str(ready))
    quantization.quantize_static(
        str(ready),
        str(onnx_file(folder, size, "qdq")),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )


def _quantise_nncf(net: str, folder: Path, size: int) -> None:
    import nncf
    import openvino

    data = nncf.Dataset([batch(net, size, seed) for seed in range(CALIBRATION_BATCHES)])
    model = openvino.convert_model(str(onnx_file(folder, size, "float")))
    quantised = nncf.quantize(model, data, preset=nncf.QuantizationPreset.MIXED, subset_size=CALIBRATION_BATCHES)
    openvino.save_model(quantised, str(folder / f"nncf-batch{size}.xml"), compress_to_fp16=False)


def open_engine(engine: Engine, net: str, folder: Path, size: int, threads: int) -> Call:
    """The network in one engine, for batches of that size."""
    if engine.name == "bitstrata":
        return _open_ours(artifact(folder, net), int(engine.precision.split()[0]), threads)
    if engine.name == "PyTorch":
        return _open_torch(float_net(net), None)
    if engine.name.startswith("PyTorch FX"):
        return _open_torch(_fx(net, engine.name.split()[-1]), engine.name.split()[-1])
    if engine.name.startswith("ONNX"):
        return open_onnxruntime(onnx_file(folder, size, "qdq" if engine.precision == "int8" else "float"), threads)
    file = {"OpenVINO NNCF": folder / f"nncf-batch{size}.xml", "OpenVINO QDQ": onnx_file(folder, size, "qdq")}
    return open_openvino(file.get(engine.name, onnx_file(folder, size, "float")), threads)


def _open_ours(path: Path, bits: int, threads: int) -> Call:
    from bitstrata.runtime import load

    return load(path, bits, threads=threads).at(bits)  # type: ignore[return-value]


def _open_torch(model: Any, backend: str | None) -> Call:
    import torch

    if backend is None:
        model = model.to(memory_format=torch.channels_last)

    def call(x: np.ndarray) -> np.ndarray:
        if backend is not None:
            torch.backends.quantized.engine = backend
        with torch.inference_mode():
            return model(torch.from_numpy(x).contiguous(memory_format=torch.channels_last)).numpy()

    return call


def _fx(net: str, backend: str) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that another package will replace it, which fails on these networks
        from torch.ao.quantization import get_default_qconfig_mapping
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

        torch.backends.quantized.engine = backend
        inputs = [torch.from_numpy(batch(net, 8, seed)) for seed in range(CALIBRATION_BATCHES)]
        prepared = prepare_fx(float_net(net), get_default_qconfig_mapping(backend), (inputs[0],))
        with torch.inference_mode():
            for x in inputs:
                prepared(x)
        return convert_fx(prepared)


def open_onnxruntime(path: Path, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"input": x})[0]


def open_openvino(path: Path, threads: int) -> Call:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # peers.py pins all threads itself
    }
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    return lambda x: request.infer([x], share_inputs=True, share_outputs=True)[0]


def pin(threads: int) -> None:
    """The main thread on the first processor and all others on the rest; without it two threads may share one."""
    if not hasattr(os, "sched_setaffinity"):
        return
    processors = sorted(os.sched_getaffinity(0))[:threads]
    others = processors[1:] or processors
    for task in os.listdir("/proc/self/task"):
        try:
            main = int(task) == os.getpid()
            os.sched_setaffinity(int(task), {processors[0]} if main else set(others))
        except ProcessLookupError:  # it has ended
            continue


def short(error: Exception) -> str:
    """One line of it."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"
