#!/usr/bin/env bash
# The table of `cpu.py` beside all peers: run.sh [arguments of cpu.py]. Peers' environments (gigabytes; llama.cpp is built)
# and models are made where they are missing, in SLUICE_BENCH_HOME. PEERS is a pattern of the peers to run: all of them and
# ours together take some 20 GB of memory.
set -euo pipefail
cd "$(dirname "$0")/../../.."
PY=${PY:-.venv/bin/python}
HERE=benchmarks/engine/peers
BENCH=${SLUICE_BENCH_HOME:-$HOME/.cache/sluice-bench}
MODEL=${MODEL:-$BENCH/models/0.6b}

if [ ! -e "$BENCH/llama/done" ]; then
  python3 -m venv --clear "$BENCH/llama"
  "$BENCH/llama/bin/pip" install --quiet numpy llama-cpp-python gguf
  touch "$BENCH/llama/done"
fi
VLLM=$($PY -c "import sys; sys.path.insert(0, 'benchmarks/remote'); import servers; print(servers.environment('vllm'))")
$PY -c "import sys; sys.path.insert(0, 'benchmarks/engine'); import cpu, pathlib; cpu.make_model(pathlib.Path(sys.argv[1]))" "$MODEL"
[ -e "$MODEL-w8a8/config.json" ] || $PY $HERE/convert.py "$MODEL" w8a8 "$MODEL-w8a8"
if [ ! -e "$MODEL-bf16.gguf" ]; then
  PYTHONPATH=$(echo "$BENCH"/llama/lib/python3*/site-packages) $PY $HERE/convert.py "$MODEL" gguf "$MODEL-bf16.gguf.part"
  mv "$MODEL-bf16.gguf.part" "$MODEL-bf16.gguf"
fi
for type in q8_0 q4_0; do
  [ -e "$MODEL-$type.gguf" ] || "$BENCH/llama/bin/python" $HERE/llama.py "$MODEL-bf16.gguf" --quantize "$type" "$MODEL-$type.gguf"
done

KV_GIB=${KV_GIB:-2}  # of vLLM: with 2 it holds 9 rows of the 32 of 2048 tokens, for which it takes 9
peers=("vLLM bf16=$VLLM $HERE/vllm_cpu.py $MODEL $KV_GIB" "vLLM W8A8=$VLLM $HERE/vllm_cpu.py $MODEL-w8a8 $KV_GIB")
for type in bf16 q8_0 q4_0; do
  peers+=("llama.cpp $type=$BENCH/llama/bin/python $HERE/llama.py $MODEL-$type.gguf")
done
peers+=("transformers continuous batching=$PY $HERE/continuous.py $MODEL")
chosen=()
for peer in "${peers[@]}"; do
  if [[ $peer =~ ${PEERS:-.} ]]; then chosen+=("$peer"); fi
done
exec $PY benchmarks/engine/cpu.py --model "$MODEL" "$@" --peers "${chosen[@]}"
