#!/usr/bin/env bash
# Everything that only a GPU can show, in ten minutes: is it right, then how fast, the rows that matter most first.
#
#     bash benchmarks/gpu.sh [OUT]
#
# It makes up data of the right shapes in OUT/data (600 MB, 1.3 GB in memory), writes every measurement to OUT/gpu.db, the table
# to OUT/gpu.md and all that is said to OUT/gpu.log. Nothing stops at a failure: what fails is in the log, what is not measured is
# said below the table. Nothing else is needed but the packages of pyproject.toml. To try the script itself without a GPU:
#     DEVICE=cpu SCALE=0.01 BETA=5 LIMIT=240 bash benchmarks/gpu.sh OUT
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD
out=${1:-gpu}
device=${DEVICE:-cuda}
scale=${SCALE:-1}
beta=${BETA:-0.1}
python=${PYTHON:-python3}
mkdir -p "$out"
exec > >(tee "$out/gpu.log") 2>&1
db=$out/gpu.db
begun=$SECONDS

say() { echo "[$((SECONDS - begun)) s] $*"; }
# Each measurement has a limit, so that one that is slow takes nothing from the others, and all of them end in time for the table.
limited() { # SECONDS COMMAND...
  local left=$((${LIMIT:-570} - SECONDS + begun))
  ((left > 5)) || return 124
  timeout $(($1 < left ? $1 : left)) "${@:2}"
}
pflbench() { # SECONDS ARGUMENTS...
  limited "$1" "$python" -c 'import sys; sys.argv[0] = "pflbench"; from pflbench.cli import main; sys.exit(main())' "${@:2}"
}
bench() { # NAME SECONDS ARGUMENTS...
  say "$1"
  pflbench "$2" bench --name "$1" "${@:3}" --device "$device" --db "$db" || say "$1: not measured"
}

if [[ $device != cpu ]]; then
  say "doctor"
  pflbench 130 doctor --gpu --device "$device" || say "doctor: not everything passed"
fi
say "tests"
OMP_NUM_THREADS=4 limited 120 "$python" -m pytest -q -ra -p no:cacheprovider tests/engine/test_gpu.py || say "tests: not everything passed"
say "data"
"$python" benchmarks/made_up.py "$out/data" --scale "$scale"

cifar="npz:$out/data/cifar10.npz"
tiny="npz:$out/data/tiny.npz"
mnist="npz:$out/data/mnist.npz"
texts="csv:$out/data/texts.csv"
graph=batched; ways=(batched:none batched:heuristic batched:benchmark)
[[ $device == cpu ]] && graph=batched:none && ways=()
bench cifar10 60 -m fedavg -d "$cifar" --model cnn --beta "$beta" --rounds 5 --engine $graph --engine packed
# Ways of computing against each other, and the loop, on a tenth of the data: the ratios are what counts.
bench cifar10-ways 75 -m fedavg -d "$cifar" --model cnn --beta "$beta" --rounds 3 --share 0.1 \
  --engine loop --engine $graph "${ways[@]/#/--engine=}"
bench tiny 50 -m fedala -d "$tiny" --model cnn --beta "$beta" --rounds 3 --engine $graph
bench texts-whole 30 -m fedavg -d "$texts" --model fasttext --beta "$beta" --rounds 3 --engine $graph
bench tiny-resnet18 80 -m fedala -d "$tiny" --model resnet18 --beta "$beta" --rounds 2 --engine $graph
bench texts 40 -m fedavg -d "$texts" --model fasttext --beta "$beta" --rounds 3 --share 0.2 --engine $graph --engine loop
for clients in 20 100 1000; do
  bench "clients-$clients" 30 -m fedavg -d "$mnist" --model cnn --clients $clients --partition iid --rounds 3 --engine $graph
done
if [[ $device != cpu ]]; then
  bench tiny-tf32 40 -m fedala -d "$tiny" --model cnn --beta "$beta" --rounds 3 --engine $graph --dtype tf32
  bench tiny-resnet18-tf32 60 -m fedala -d "$tiny" --model resnet18 --beta "$beta" --rounds 2 --engine $graph --dtype tf32
fi
say "methods"
limited 60 "$python" benchmarks/method_work.py -d "$mnist" --model cnn --share 0.1 --rounds 2 --device "$device" --engine batched \
  | tee "$out/methods.txt"
# What rounding factors to 10 bits does to accuracy: the same seeds, and so the same batches, in both.
for dtype in float32 tf32; do
  [[ $device == cpu && $dtype == tf32 ]] && continue
  say "accuracy in $dtype"
  pflbench 60 run -m fedavg -m fedala -d "$cifar" --model cnn --beta "$beta" --rounds 10 --seeds 0-2 --dtype $dtype \
    --device "$device" --quiet --db "$db" || say "accuracy in $dtype: not measured"
done
say "table"
"$python" benchmarks/gpu_table.py "$db" | tee "$out/gpu.md"
