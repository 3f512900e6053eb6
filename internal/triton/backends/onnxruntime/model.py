"""Python-based Triton backend that runs a model.onnx with onnxruntime.

It stands in for the native onnxruntime backend where a tritonserver carries
only the python backend. What Triton's core decides stays the core's; names,
types and ranks are compared with the graph here, in the order in which the
native backend does it, so that a wrong configuration does not load.
"""

import json
import os
import sys

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from arrays import from_triton, to_triton  # noqa: E402

ONNX_TO_TRITON = {
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(bool)": "TYPE_BOOL",
    "tensor(string)": "TYPE_STRING",
}


def model_path(repository, version, config):
    name = config.get("default_model_filename") or "model.onnx"
    path = os.path.join(repository, str(version), name)
    if os.path.isdir(path):  # a folder holds the graph and its external data
        path = os.path.join(path, "model.onnx")
    if not os.path.exists(path):
        raise pb_utils.TritonModelException(
            f"unable to find '{path}' for model '{config.get('name', '')}'")
    return path


def session_options(config):
    """Thread counts and graph optimization from the model's parameters."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    params = {k: v.get("string_value", "") for k, v in config.get("parameters", {}).items()}
    options.intra_op_num_threads = int(params.get("intra_op_thread_count", 1))
    options.inter_op_num_threads = int(params.get("inter_op_thread_count", 1))
    level = config.get("optimization", {}).get("graph", {}).get("level", 0)
    if level == -1:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    elif level == 1:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return options


def dims_of(tensor):
    return [d if isinstance(d, int) and d >= 0 else -1 for d in tensor.shape]


def check(config, session):
    """Raise where the configuration contradicts the graph."""
    batching = config["max_batch_size"] > 0
    name = config["name"]
    controls = [c["name"] for c in config.get("sequence_batching", {}).get("control_input", [])]
    for control in controls:
        if control not in [t.name for t in session.get_inputs()]:
            raise pb_utils.TritonModelException(
                f"configuration specified sequence control '{control}', but model does not provide that input")
    for kind, found in (("input", session.get_inputs()), ("output", session.get_outputs())):
        real = {t.name: t for t in found}
        declared = config[kind]
        expected = len(declared) + len(controls)
        if kind == "input" and expected != len(real):
            raise pb_utils.TritonModelException(
                f"unable to load model '{name}', configuration expects {expected} inputs, model provides {len(real)}")
        for io in declared:
            if kind == "input" and io.get("optional") and batching:
                raise pb_utils.TritonModelException(
                    f"unable to load model '{name}', optional input '{io['name']}' is not supported for models that support batching")
            if io["name"] not in real:
                raise pb_utils.TritonModelException(
                    f"unexpected inference {kind} '{io['name']}', allowed {kind}s are: {', '.join(real)}")
            tensor = real[io["name"]]
            want = ONNX_TO_TRITON.get(tensor.type)
            if want is None:
                raise pb_utils.TritonModelException(
                    f"{kind} '{io['name']}' has the unsupported type {tensor.type}")
            if io["data_type"] != want:
                raise pb_utils.TritonModelException(
                    f"the model expects datatype {want} for {kind} '{io['name']}', model configuration specifies {io['data_type']}")
            dims = dims_of(tensor)
            if batching and (not dims or dims[0] != -1):
                raise pb_utils.TritonModelException(
                    f"model '{name}', tensor '{io['name']}': for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; but shape expected by the model is {dims}")
            shape = io.get("reshape", {}).get("shape", io["dims"])
            full = ([-1] if batching else []) + [int(d) for d in shape]
            if len(full) != len(dims) or any(-1 not in (c, m) and c != m for c, m in zip(full, dims)):
                raise pb_utils.TritonModelException(
                    f"model '{name}', tensor '{io['name']}': the model expects {len(dims)} dimensions (shape {dims}) but the model configuration specifies {len(full)} dimensions (shape {full})")


class TritonPythonModel:
    """One instance of one version."""

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        path = model_path(args["model_repository"], args["model_version"], self.config)
        providers = ["CPUExecutionProvider"]
        if args["model_instance_kind"] == "GPU":
            if "CUDAExecutionProvider" not in ort.get_available_providers():
                raise pb_utils.TritonModelException("this onnxruntime has no CUDAExecutionProvider for a GPU instance")
            providers = [("CUDAExecutionProvider", {"device_id": int(args["model_instance_device_id"])})]
        try:
            self.session = ort.InferenceSession(path, session_options(self.config), providers=providers)
        except Exception as err:
            raise pb_utils.TritonModelException(f"onnx runtime error: {err}") from err
        check(self.config, self.session)
        self.inputs = [t["name"] for t in self.config["input"]]
        self.types = {t["name"]: t["data_type"] for t in self.config["input"]}
        self.outputs = [t["name"] for t in self.config["output"]]
        self.batching = self.config["max_batch_size"] > 0

    def execute(self, requests):
        if not self.batching or len(requests) == 1:
            return [self.run_one(r) for r in requests]
        return self.run_merged(requests)

    def feed(self, request):
        feed = {}
        for name in self.inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:  # an optional input may be left out
                feed[name] = from_triton(tensor, self.types[name])
        return feed

    def run(self, feed, outputs):
        for name, value in feed.items():
            if value.dtype == object:
                feed[name] = np.array([b.decode("utf-8") for b in value.reshape(-1)], dtype=object).reshape(value.shape)
        return self.session.run(outputs, feed)

    def respond(self, names, values):
        tensors = [to_triton(name, value) for name, value in zip(names, values)]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def run_one(self, request):
        names = [n for n in self.outputs if n in request.requested_output_names()]
        try:
            return self.respond(names, self.run(self.feed(request), names))
        except Exception as err:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"onnx runtime error: {err}"))

    def run_merged(self, requests):
        """Run all requests of a batch as one, as the native backend does."""
        feeds = [self.feed(r) for r in requests]
        rows = [next(iter(f.values())).shape[0] for f in feeds]
        try:
            merged = {n: np.concatenate([f[n] for f in feeds]) for n in feeds[0]}
            values = self.run(merged, self.outputs)
        except Exception as err:
            error = pb_utils.TritonError(f"onnx runtime error: {err}")
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        total = sum(rows)
        for name, value in zip(self.outputs, values):
            if np.ndim(value) == 0 or np.shape(value)[0] != total:
                error = pb_utils.TritonError(
                    f"output '{name}' has {np.shape(value)[:1]} rows for a batch of {total}")
                return [pb_utils.InferenceResponse(error=error) for _ in requests]
        responses, at = [], 0
        for request, n in zip(requests, rows):
            wanted = request.requested_output_names()
            pairs = [(name, value[at:at + n]) for name, value in zip(self.outputs, values) if name in wanted]
            responses.append(self.respond([p[0] for p in pairs], [p[1] for p in pairs]))
            at += n
        return responses
