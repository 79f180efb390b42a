#!/usr/bin/env bash
# run.sh [--smoke] : check every kernel on this machine's GPU, measure the engine, and print one table last.
# Needs torch, triton, transformers and numpy; takes ten minutes at most. --smoke runs all of it on the CPU, in Triton's
# interpreter and with tiny shapes: it shows that the script works, and its figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" = --smoke ]; then export TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES=; fi
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
exec timeout 590 "${PYTHON:-python3}" -m benchmarks.gpu.run "$@"
