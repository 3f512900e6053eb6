#!/usr/bin/env bash
# On the GPU machine: joins the parts of pack.sh and installs them into a Python
# as pip would.
#   unpack.sh PARTS [PYTHON]     PARTS is the folder of all parts; PYTHON has torch and onnxruntime
# It prints the environment that gpucheck needs.
set -euo pipefail
parts=$1
python=$(command -v "${2:-python3}")
(cd "$parts" && sha256sum -c --quiet SHA256SUMS)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cat "$parts"/part-?? | tar -xf - -C "$tmp"
"$python" - "$tmp" <<'P'
import glob, os, sys, sysconfig, zipfile

tmp, site = sys.argv[1], sysconfig.get_path("purelib")
libs = os.path.join(site, "tensorrt_libs")
os.makedirs(libs, exist_ok=True)
jar, = glob.glob(os.path.join(tmp, "libs/*.jar"))
with zipfile.ZipFile(jar) as z:
    for n in z.namelist():
        if os.path.basename(n).startswith("lib") and ".so" in n:
            with z.open(n) as src, open(os.path.join(libs, os.path.basename(n)), "wb") as dst:
                while chunk := src.read(1 << 24):
                    dst.write(chunk)
with open(os.path.join(libs, "__init__.py"), "w") as f:
    f.write("import ctypes, os\n_d = os.path.dirname(os.path.realpath(__file__))\n"
            "for _n in ('libnvinfer.so.10', 'libnvinfer_plugin.so.10', 'libnvonnxparser.so.10'):\n"
            "    ctypes.CDLL(os.path.join(_d, _n), mode=ctypes.RTLD_GLOBAL)\n")
os.makedirs(os.path.join(site, "tensorrt"), exist_ok=True)
with open(os.path.join(site, "tensorrt/__init__.py"), "w") as f:
    f.write("from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n")
for w in glob.glob(os.path.join(tmp, "wheels/*.whl")):
    with zipfile.ZipFile(w) as z:
        z.extractall(site)
for pattern in ("pytriton/tritonserver/bin/*", "pytriton/tritonserver/python_backend_stubs/*/*", "perf_analyzer/bin/*"):
    for f in glob.glob(os.path.join(site, pattern)):
        os.chmod(f, 0o755)
print(f"export TRTSHIP_PYTHON={sys.executable} LD_LIBRARY_PATH={libs}:${{LD_LIBRARY_PATH:-}}")
P
