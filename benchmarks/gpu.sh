#!/usr/bin/env bash
# Everything that only a GPU can show, in ten minutes: is it right, is it what should run, how fast; what matters most comes first.
#
#     bash benchmarks/gpu.sh [OUT]
#
# It makes up data of the right shapes in OUT/data (600 MB, 1.3 GB in memory). Runs go to OUT/gpu.db, measurements to
# OUT/bench-NAME.json, kernels and ways to convolve to OUT/kernels.json, the tables that it prints last to OUT/gpu.md, and all that is
# said to OUT/gpu.log. Nothing stops at a failure: each step has its limit, and says so where it failed. Nothing else is needed but
# the packages of pyproject.toml. LIMIT: seconds of all (570); PATIENCE: seconds after which no further convolution is timed (60).
# To try the script itself without a GPU:
#     DEVICE=cpu SCALE=0.01 BETA=5 LIMIT=300 bash benchmarks/gpu.sh OUT
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
out=${1:-gpu}
scale=${SCALE:-1}
beta=${BETA:-0.1}
python=${PYTHON:-python3}
device=(${DEVICE:+--device "$DEVICE"}) # as users do, without one
mkdir -p "$out"
exec > >(tee "$out/gpu.log") 2>&1
db=$out/gpu.db
begun=$SECONDS

# So that what is slow takes nothing from the rest, and all of it ends in time for the tables.
step() { # WHAT SECONDS COMMAND...
  local left=$((${LIMIT:-570} - SECONDS + begun))
  printf '\n[%d s] %s\n' $((SECONDS - begun)) "$1"
  ((left > 5)) || { echo "$1: no time left"; return; }
  timeout -k 5 $(($2 < left ? $2 : left)) "${@:3}" || echo "$1: ended with $?"
}
pflbench=("$python" -c 'import sys; sys.argv[0] = "pflbench"; from pflbench.cli import main; sys.exit(main())')
bench() { # NAME SECONDS ARGUMENTS...
  step "$1" "$2" "$python" benchmarks/bench.py "${@:3}" "${device[@]}" --json "$out/bench-$1.json"
}
run() { # WHAT ARGUMENTS...
  step "$1" 60 "${pflbench[@]}" run -m fedavg -d "$cifar" --model cnn --beta "$beta" --rounds 3 "${@:2}" "${device[@]}" --quiet --db "$db"
}

cifar="npz:$out/data/cifar10.npz"
tiny="npz:$out/data/tiny.npz"
texts="csv:$out/data/texts.csv"
"$python" benchmarks/made_up.py "$out/data" --scale "$scale" &
made=$!

step "versions" 30 "${pflbench[@]}" doctor
command -v nvidia-smi >/dev/null &&
  step "driver" 20 nvidia-smi --query-gpu=name,driver_version,memory.total,memory.free,power.limit,clocks.max.sm --format=csv
cpu() { [[ ${DEVICE:-} == cpu ]]; }
cpu || step "doctor" 240 "${pflbench[@]}" doctor --gpu "${device[@]}"
wait $made

run "three rounds"
step "its record" 20 "${pflbench[@]}" runs show 1 --db "$db"
patience=${PATIENCE:-60}
cpu && patience=5
step "kernels" 100 "$python" benchmarks/gpu_kernels.py "$out" -d "$cifar" --beta "$beta" --patience $patience "${device[@]}"
graph=batched; ways=(batched:none batched:groups batched:unfold); many=(500 1000); part=(--share 0.2)
cpu && graph=batched:none && ways=() && many=(50 100) && part=(--share 0.02 --clients 3)
bench resnet18 60 -m fedavg -d "$tiny" --model resnet18 --beta "$beta" --rounds 2 "${part[@]}" --engine $graph
for clients in "${many[@]}"; do
  bench "clients-$clients" 45 -m fedavg -d "$cifar" --model cnn --clients $clients --partition iid --rounds 3 --engine $graph
done
run "the same seed once more" --force
run "deterministic" --force --deterministic
run "deterministic once more" --force --deterministic
bench cifar10 40 -m fedavg -d "$cifar" --model cnn --beta "$beta" --rounds 5 --engine $graph
# Against each other, on a tenth of the data: the ratios are what counts.
bench ways 60 -m fedavg -d "$cifar" --model cnn --beta "$beta" --rounds 3 --share 0.1 --engine loop --engine $graph "${ways[@]/#/--engine=}"
bench tiny 50 -m fedala -d "$tiny" --model cnn --beta "$beta" --rounds 3 --engine $graph
cpu ||
  bench tiny-tf32 40 -m fedala -d "$tiny" --model cnn --beta "$beta" --rounds 3 --engine $graph --dtype tf32
bench texts 30 -m fedavg -d "$texts" --model fasttext --beta "$beta" --rounds 3 --engine $graph
bench packed 40 -m fedavg -d "$cifar" --model cnn --beta "$beta" --rounds 3 --engine $graph --engine packed

printf '\n[%d s] tables\n' $((SECONDS - begun))
"$python" benchmarks/gpu_table.py "$out" | tee "$out/gpu.md"
