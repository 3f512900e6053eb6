#!/usr/bin/env bash
# Checks the table of TensorRT features and the names that the Python half uses
# against real TensorRT modules, which import without a GPU:
#   bench/trtapi/run.sh        downloads 1.7 GB (Maven Central, PyPI), kept in the user's cache folder
# Writes docs/verification/tensorrt-api.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/trtship/tensorrt-api
python=$(python3 -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
mkdir -p "$cache"
module() { # name, bindings wheel, jar, library suffix
  local site=$cache/$1
  [ -e "$site/complete" ] && return
  echo "installing $2 and $3" >&2
  rm -rf "$site" && mkdir -p "$site/tensorrt_libs" "$site/tensorrt" "$site/.jar"
  python3 -m pip install -q --no-deps --only-binary=:all: --python-version "$python" --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux_2_31_x86_64 --target "$site" "$2"
  mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:copy -Dtransitive=false -Dartifact="$3" -DoutputDirectory="$site/.jar" >/dev/null
  python3 - "$site" "$4" <<'P'
import glob, os, sys, zipfile
site, suffix = sys.argv[1:]
libs = os.path.join(site, "tensorrt_libs")
with zipfile.ZipFile(glob.glob(os.path.join(site, ".jar/*.jar"))[0]) as z:
    for n in z.namelist():
        base = os.path.basename(n)
        if base.startswith("lib") and ".so" in base and "builder_resource" not in base:
            with open(os.path.join(libs, base), "wb") as f:
                f.write(z.read(n))
with open(os.path.join(libs, "__init__.py"), "w") as f:
    f.write("import ctypes, os\n_d = os.path.dirname(os.path.realpath(__file__))\n"
            f"for _n in ('nvinfer', 'nvinfer_plugin', 'nvonnxparser'):\n"
            f"    ctypes.CDLL(os.path.join(_d, 'lib' + _n + '.so.{suffix}'), mode=ctypes.RTLD_GLOBAL)\n")
with open(os.path.join(site, "tensorrt/__init__.py"), "w") as f:
    f.write("from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n")
P
  rm -rf "$site/.jar"
  touch "$site/complete"
}
module 10.6 tensorrt-cu12-bindings==10.6.0 org.bytedeco:tensorrt:10.6-1.5.11:jar:linux-x86_64-redist 10
module 11.2 tensorrt-cu13-bindings==11.2.1.2 org.bytedeco:tensorrt:11.2-1.5.14:jar:linux-x86_64-redist 11
failed=0
for v in 10.6 11.2; do
  PYTHONPATH=$cache/$v python3 bench/trtapi/names.py internal/worker/python >"$cache/$v.json" || failed=1
done
python3 - "$cache" <<'P'
import json, sys
rows = [json.load(open(f"{sys.argv[1]}/{v}.json")) for v in ("10.6", "11.2")]
with open("docs/verification/tensorrt-api.json", "w") as f:
    json.dump({"command": "bench/trtapi/run.sh", "modules": rows}, f, indent=1)
    f.write("\n")
for r in rows:
    print(r["tensorrt"], r["names_used"], "names used,", len(r["names_absent"]), "absent;", len(r["table_differs"]), "rows of the table differ")
P
exit $failed
