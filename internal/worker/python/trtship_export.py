"""Writes ONNX by either of torch's exporters.

What is written is raw: it may hold paths, stack traces and one file a tensor. The
Go half makes the final file from it.
"""
import os
import warnings

import torch

import trtship_signature
from trtship_errors import EXPORT, Failure, first_line

RAW = "raw.onnx"


def export_model(module, model, params):
    adapter = trtship_signature.Adapter(module, model).eval()
    worked, notes = trtship_signature.first_working(adapter, model["inputs"], params["sizes"], model["device"])
    sizes, tensors, _ = worked[0]
    outputs = trtship_signature.describe_outputs(adapter.output_names, worked)
    write = export_dynamo if params["dynamo"] else export_script
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        try:
            write(adapter, tuple(tensors), model["inputs"], outputs, os.path.join(params["dir"], RAW), params)
        except Failure:
            raise
        except (Exception, SystemExit) as err:
            raise explain(err, params["dynamo"]) from err
    return {
        "files": sorted(os.listdir(params["dir"])), "sizes": sizes, "confirmed": len(worked) > 1, "outputs": outputs,
        "inputs": trtship_signature.describe_inputs(model["inputs"]), "notes": notes + tracer_notes(caught),
    }


def tracer_notes(caught):
    """What the tracer warns of: Python values that become constants, with their place."""
    seen = {f"{os.path.basename(w.filename)}:{w.lineno}: {str(w.message).split('. ')[0]}"
            for w in caught if issubclass(w.category, torch.jit.TracerWarning)}
    return sorted(seen)


def explain(err, dynamo):
    other = "false" if dynamo else "true"
    hint = f"try the other exporter (export.dynamo: {other}), or simplify control flow that depends on data"
    text = str(err)
    if dynamo and ("Constraints violated" in text or "specialized" in text.lower()):
        hint = "a dimension that is declared dynamic becomes a constant in forward, e.g. by int(x.shape[0]): compute with the shape itself"
    cause = err
    while cause.__cause__ is not None:  # the exporter's own words are about its steps
        cause = cause.__cause__
    return Failure(EXPORT, "export", f"torch.onnx.export: {first_line(cause)}", hint=hint, cause=err, details=[("torch", text[:4000])])


def symbols(rows, key):
    return {row["name"]: {i: d for i, d in enumerate(row[key]) if not str(d).isdigit()} for row in rows}


def export_script(adapter, tensors, inputs, outputs, path, params):
    axes = {**symbols(inputs, "shape"), **symbols(outputs, "dims")}
    if scripted(adapter):
        # The exporter's own tracer does not step into archives; this one keeps their control flow.
        adapter = torch.jit.trace(adapter, tensors, check_trace=False)
    torch.onnx.export(
        adapter, tensors, path, dynamo=False, opset_version=params["opset"], training=torch.onnx.TrainingMode.PRESERVE,
        input_names=[i["name"] for i in inputs], output_names=[o["name"] for o in outputs],
        dynamic_axes={name: dims for name, dims in axes.items() if dims}, do_constant_folding=params["constant_folding"],
    )


def export_dynamo(adapter, tensors, inputs, outputs, path, params):
    if scripted(adapter):
        raise Failure(EXPORT, "export", "the torch.export-based exporter takes no TorchScript", hint="set export.dynamo: false")
    dims, shapes = {}, []
    for one in inputs:
        shapes.append({axis: dims.setdefault(d, torch.export.Dim(identifier(d))) for axis, d in enumerate(one["shape"]) if isinstance(d, str)})
    program = torch.onnx.export(
        adapter, tensors, None, dynamo=True, opset_version=params["opset"], dynamic_shapes=(tuple(shapes),),
        input_names=[i["name"] for i in inputs], output_names=[o["name"] for o in outputs],
        optimize=params["constant_folding"], verbose=False,
    )
    program.save(path, external_data=True)


def scripted(module):
    return any(isinstance(m, torch.jit.ScriptModule) for m in module.modules())


def identifier(symbol):
    text = "".join(c if c.isalnum() else "_" for c in symbol)
    return text if text.isidentifier() else "d_" + text
