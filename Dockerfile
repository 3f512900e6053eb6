# The image of the action and of the command line.
#
#   docker build -t trtship .                                        everything, on NVIDIA's TensorRT image
#   docker build -t trtship --build-arg BASE=debian:bookworm-slim --build-arg CPU_ONLY=1 .
#                                                                    the stages that need no GPU
#   docker build -t trtship-gate --build-arg BASE=debian:bookworm-slim --build-arg ENVIRONMENTS= .
#                                                                    gate, report, recheck, lint: no Python inside
#
# The base decides which TensorRT builds and runs the engines. A plan loads only
# in its own release, so pick the one that your Triton image has.
ARG GO_IMAGE=golang:1.26-bookworm
ARG BASE=nvcr.io/nvidia/tensorrt:24.11-py3

FROM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
ENV CGO_ENABLED=1 CGO_CFLAGS="-g -O2 -Wno-deprecated-declarations"
RUN go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/trtship/trtship/internal/cli.Release=${VERSION}" -o /out/trtship ./cmd/trtship

FROM ${BASE}
ARG DEBIAN_FRONTEND=noninteractive
ARG ENVIRONMENTS="base triton"
# Python with venv and its shared library (Triton's python backend loads it), and
# git for the commit in the report; nothing where no environment is wanted. What
# the base has already is left as it is.
RUN set -eu; \
    want="ca-certificates"; \
    if [ -n "${ENVIRONMENTS}" ]; then \
      python3 -c 'import venv, ensurepip' 2>/dev/null || want="$want python3 python3-venv libpython3-dev"; \
      command -v git >/dev/null || want="$want git"; \
    fi; \
    missing=""; \
    for p in $want; do dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"; done; \
    if [ -n "$missing" ]; then \
      apt-get update; \
      apt-get install -y --no-install-recommends $missing; \
      rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=build /out/trtship /usr/local/bin/trtship

# The environments lie outside of HOME, which a runner replaces, and are read-only
# in use. The GPU is asked for by the runtime: see docs/action.md.
ENV XDG_CACHE_HOME=/opt/trtship/cache \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# CPU_ONLY=1 takes out, in the same layer, what torch loads on a GPU alone (its
# compiler, solvers and cuDNN's engines); the libraries that it is linked with stay.
ARG CPU_ONLY=
RUN set -eu; \
    if [ -n "${ENVIRONMENTS}" ]; then trtship env install ${ENVIRONMENTS}; fi; \
    if [ -n "${CPU_ONLY}" ]; then \
      for s in "$XDG_CACHE_HOME"/trtship/env-*/lib/python3*/site-packages; do \
        rm -rf "$s"/triton "$s"/torch/include "$s"/torch/bin/ptxas "$s"/torch/bin/protoc* "$s"/torch/lib/libtorch_cuda_linalg.so \
          "$s"/nvidia/cudnn/lib/libcudnn_*.so* "$s"/nvidia/*/lib/libcusolver* "$s"/nvidia/*/lib/libnvrtc* \
          "$s"/nvidia/*/lib/libnvperf* "$s"/nvidia/nvshmem/lib/*.bc "$s"/nvidia/*/include; \
      done; \
    fi
# What the image is made of, as CycloneDX.
RUN mkdir -p /usr/share/doc/trtship && trtship sbom --image > /usr/share/doc/trtship/sbom.cdx.json

# Everything that a run writes goes below the working directory, so that the image
# runs with --read-only and one volume: docker run --read-only --tmpfs /tmp -v "$PWD:/work" …
WORKDIR /work
ENTRYPOINT ["/usr/local/bin/trtship"]
CMD ["help"]
