#!/usr/bin/env bash
# Packs what the GPU check needs for a machine without a network: gpucheck, a
# TensorRT 10.6 and a tritonserver, in parts of at most 56 MB.
#   bench/gpucheck/pack.sh [DIR]     default .gpu; needs Go, Maven, pip and 3 GB of disk
# Bring every part into one folder there, and run unpack.sh. Nothing here belongs in a commit.
set -euo pipefail
dir=${1:-.gpu}
jar=org.bytedeco:tensorrt:10.6-1.5.11:jar:linux-x86_64-redist
wheels=(tensorrt-cu12-bindings==10.6.0 nvidia-pytriton==0.7.0 perf-analyzer==2.60.0)
python=${GPU_PYTHON:-3.12}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$dir"
rm -rf "$dir"/part-*
echo "packing $jar and ${wheels[*]} for Python $python"
mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:copy -Dtransitive=false -Dartifact="$jar" -DoutputDirectory="$tmp/libs" >/dev/null
platforms=(--platform manylinux2014_x86_64)
for v in 39 38 35 34 31 28 27 17; do platforms+=(--platform "manylinux_2_${v}_x86_64"); done
python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$python" --implementation cp \
  --abi "cp${python/./}" --abi none "${platforms[@]}" -d "$tmp/wheels" "${wheels[@]}"
tar -C "$tmp" -cf - libs wheels | split -b 56000000 -d -a 2 - "$tmp/part-"
for p in "$tmp"/part-*; do
  n=$(basename "$p")
  mkdir -p "$dir/$n"
  mv "$p" "$dir/$n/$n"
done
(cd "$dir" && sha256sum part-*/part-* | sed 's# part-[0-9]*/# #' >part-00/SHA256SUMS)
go build -trimpath -ldflags "-s -w" -o "$dir/gpucheck" ./bench/gpucheck
go test -c -trimpath -ldflags "-s -w" -tags gpu -o "$dir/engine.gpu.test" ./internal/engine
cp bench/gpucheck/unpack.sh "$dir/"
ls "$dir"
