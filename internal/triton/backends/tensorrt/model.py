"""Python-based Triton backend that runs a model.plan with TensorRT.

It stands in for the native tensorrt backend where a tritonserver carries only
the python backend. The plan runs through the modules that trtship itself runs
engines with, which lie beside this file; names, types and dimensions are
compared with the plan, so that a wrong configuration does not load.
"""

import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import trt_engine  # noqa: E402
from arrays import from_triton, to_triton  # noqa: E402

TRITON = {
    "float32": "TYPE_FP32", "float16": "TYPE_FP16", "int8": "TYPE_INT8", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64", "bool": "TYPE_BOOL", "uint8": "TYPE_UINT8",
}


def check(config, engine):
    """Raise where the configuration contradicts the plan."""
    batching, name = config["max_batch_size"] > 0, config["name"]
    for kind, found in (("input", engine.inputs()), ("output", engine.outputs())):
        real = {t["name"]: t for t in found}
        declared = config[kind]
        if kind == "input" and len(declared) != len(real):
            raise pb_utils.TritonModelException(
                f"unable to load model '{name}', configuration expects {len(declared)} inputs, model provides {len(real)}")
        for io in declared:
            tensor = real.get(io["name"])
            if tensor is None:
                raise pb_utils.TritonModelException(f"unexpected inference {kind} '{io['name']}', allowed {kind}s are: {', '.join(real)}")
            want = TRITON.get(tensor["dtype"])
            if io["data_type"] != want:
                raise pb_utils.TritonModelException(
                    f"unexpected datatype {io['data_type']} for inference {kind} '{io['name']}', expecting {want}")
            shape = io.get("reshape", {}).get("shape", io["dims"])
            full = ([-1] if batching else []) + [int(d) for d in shape]
            dims = tensor["dims"]
            if len(full) != len(dims) or any(m != -1 and c != m for c, m in zip(full, dims)):
                raise pb_utils.TritonModelException(
                    f"model '{name}', tensor '{io['name']}': the model expects shape {dims} but the model configuration specifies {full}")


class TritonPythonModel:
    """One instance of one version."""

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        if args["model_instance_kind"] != "GPU":
            raise pb_utils.TritonModelException(f"unable to load model '{self.config['name']}', TensorRT backend supports only GPU device")
        file = self.config.get("default_model_filename") or "model.plan"
        path = os.path.join(args["model_repository"], str(args["model_version"]), file)
        if not os.path.exists(path):
            raise pb_utils.TritonModelException(f"unable to find '{path}' for model '{self.config['name']}'")
        try:
            self.engine = trt_engine.Engine({"plan": path, "device": args["model_instance_device_id"]}, lambda event: None)
        except Exception as err:
            raise pb_utils.TritonModelException(f"unable to load plan: {err}") from err
        check(self.config, self.engine)
        self.types = {t["name"]: t["data_type"] for t in self.config["input"]}
        self.outputs = [t["name"] for t in self.config["output"]]
        self.batching = self.config["max_batch_size"] > 0

    def execute(self, requests):
        if not self.batching or len(requests) == 1:
            return [self.run_one(r) for r in requests]
        return self.run_merged(requests)

    def feed(self, request):
        return {n: from_triton(pb_utils.get_input_tensor_by_name(request, n), t) for n, t in self.types.items()}

    def run(self, feed):
        """The profile is the first whose range takes the shapes."""
        feeds = {n: (v.shape, np.ascontiguousarray(v).tobytes()) for n, v in feed.items()}
        answer, error = None, None
        for profile in range(self.engine.engine.num_optimization_profiles):
            try:
                answer = self.engine.infer(profile, feeds)
                break
            except trt_engine.EngineError as err:
                error = err
        if answer is None:
            raise error
        return {n: np.frombuffer(data, dtype=np.dtype(d)).reshape(shape) for n, (d, shape, data) in answer.items()}

    def respond(self, request, values):
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse(output_tensors=[to_triton(n, values[n]) for n in self.outputs if n in wanted])

    def run_one(self, request):
        try:
            return self.respond(request, self.run(self.feed(request)))
        except Exception as err:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"tensorrt error: {err}"))

    def run_merged(self, requests):
        """Run all requests of a batch as one, as the native backend does."""
        feeds = [self.feed(r) for r in requests]
        rows = [next(iter(f.values())).shape[0] for f in feeds]
        try:
            values = self.run({n: np.concatenate([f[n] for f in feeds]) for n in feeds[0]})
        except Exception as err:
            error = pb_utils.TritonError(f"tensorrt error: {err}")
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        responses, at = [], 0
        for request, n in zip(requests, rows):
            responses.append(self.respond(request, {name: v[at:at + n] for name, v in values.items()}))
            at += n
        return responses
