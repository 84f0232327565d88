#!/usr/bin/env bash
# Everything that only a GPU can show, in ten minutes: correctness, then the rows of the table that benchmarks/gpu_table.py prints.
#
#     bash benchmarks/gpu.sh [OUT]
#
# It makes up data of the right shapes in OUT/data (600 MB, 1.3 GB in memory), writes every measurement to OUT/gpu.db and the table
# to OUT/gpu.md. Nothing else is needed but the packages of pyproject.toml. To try the script itself without a GPU:
#     DEVICE=cpu SCALE=0.01 BETA=5 LIMIT=120 bash benchmarks/gpu.sh OUT
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD
out=${1:-gpu}
device=${DEVICE:-cuda}
scale=${SCALE:-1}
beta=${BETA:-0.1}
python=${PYTHON:-python3}
mkdir -p "$out"
db=$out/gpu.db
begun=$SECONDS

say() { echo "[$((SECONDS - begun)) s] $*"; }
# Each measurement has a limit, so that one that is slow takes nothing from the others, and all of them end in time for the table.
limited() { # SECONDS COMMAND...
  local left=$((${LIMIT:-570} - SECONDS + begun))
  ((left > 5)) || return 124
  timeout $(($1 < left ? $1 : left)) "${@:2}"
}
bench() { # NAME SECONDS ARGUMENTS...
  say "$1"
  limited "$2" "$python" -c 'import sys; sys.argv[0] = "pflbench"; from pflbench.cli import main; sys.exit(main())' \
    bench --name "$1" "${@:3}" --device "$device" --db "$db" || say "$1: not measured"
}

say "data"
"$python" benchmarks/made_up.py "$out/data" --scale "$scale"
say "correctness"
OMP_NUM_THREADS=4 limited 120 "$python" -m pytest -q -x -p no:cacheprovider tests/engine/test_gpu.py 2>&1 | tail -5

cifar="npz:$out/data/cifar10.npz"
tiny="npz:$out/data/tiny.npz"
mnist="npz:$out/data/mnist.npz"
graph=batched; [[ $device == cpu ]] && graph=batched:none
bench cifar10 60 -m fedavg -d "$cifar" --model cnn --beta $beta --rounds 5 --engine $graph --engine packed
# Ways of computing against each other, and the loop, on a tenth of the data: the ratios are what counts.
bench cifar10-ways 75 -m fedavg -d "$cifar" --model cnn --beta $beta --rounds 3 --share 0.1 \
  --engine loop --engine batched:none $([[ $device == cpu ]] || echo --engine batched:heuristic --engine batched:benchmark)
bench cifar10-compile 75 -m fedavg -d "$cifar" --model cnn --beta $beta --rounds 3 --share 0.1 --engine $graph --engine batched:compile
bench tiny 60 -m fedala -d "$tiny" --model cnn --beta $beta --rounds 3 --engine $graph
[[ $device == cpu ]] || bench tiny-tf32 45 -m fedala -d "$tiny" --model cnn --beta $beta --rounds 3 --engine $graph --dtype tf32
bench tiny-resnet18 110 -m fedala -d "$tiny" --model resnet18 --beta $beta --rounds 2 --engine $graph
[[ $device == cpu ]] || bench tiny-resnet18-tf32 75 -m fedala -d "$tiny" --model resnet18 --beta $beta --rounds 2 --engine $graph --dtype tf32
bench texts 60 -m fedavg -d "csv:$out/data/texts.csv" --model fasttext --beta $beta --rounds 3 --share 0.2 --engine $graph --engine loop
bench texts-whole 45 -m fedavg -d "csv:$out/data/texts.csv" --model fasttext --beta $beta --rounds 3 --engine $graph
for clients in 20 100 1000; do
  bench "clients-$clients" 40 -m fedavg -d "$mnist" --model cnn --clients $clients --partition iid --rounds 3 --engine $graph
done
# What rounding factors to 10 bits does to accuracy: the same seeds, and so the same batches, in both.
for dtype in float32 tf32; do
  [[ $device == cpu && $dtype == tf32 ]] && continue
  say "accuracy in $dtype"
  limited 60 "$python" -c 'import sys; sys.argv[0] = "pflbench"; from pflbench.cli import main; sys.exit(main())' \
    run -m fedavg -m fedala -d "$cifar" --model cnn --beta $beta --rounds 10 --seeds 0-2 --dtype $dtype --device "$device" --quiet --db "$db"
done
say "methods"
limited 100 "$python" benchmarks/method_work.py -d "$mnist" --model cnn --share 0.1 --rounds 2 --device "$device" --engine batched \
  | tee "$out/methods.txt"
say "table"
"$python" benchmarks/gpu_table.py "$db" | tee "$out/gpu.md"
