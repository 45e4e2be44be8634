#!/bin/bash
# One run as a SLURM job: a Ray cluster of its own on the job's machines. Guide: docs/cluster.md
# At the top of the checkout, which all machines see at the same path:
#   sbatch cluster/slurm.sh pfedbayes --data.name mnist --data.root DIR --rounds 100
# The result is in runs/slurm-JOBID. A job that is requeued goes on from its last checkpoint.

# EDIT THESE LINES, or give them to sbatch, before the name of this script.
#SBATCH --job-name=fedray
#SBATCH --nodes=2
#SBATCH --cpus-per-task=8
##SBATCH --gpus-per-node=1
#SBATCH --time=04:00:00
#SBATCH --output=slurm-%j.log

# One Ray per machine; after the loss of a machine or preemption the job is queued again; two minutes' notice of the end.
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

set -euo pipefail
trap : USR1  # before there is a run, the end of the time needs no answer
source "${FEDRAY_ENV:-$SLURM_SUBMIT_DIR/.venv}/bin/activate"
name="slurm-$SLURM_JOB_ID"
for option in "$@"; do
    case $option in --name* | --output* | --address* | --resume*) echo "$option is set by cluster/slurm.sh" >&2; exit 2 ;; esac
done

# Whoever has the token can run anything on this cluster, which lives as long as the job.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')

# This machine is the head. Ports are free ones, and files have a folder of their own: another job may use the machine, too.
read -r head port client < <(python - << 'PYTHON'
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way, socket.socket() as door, socket.socket() as client:
    try:
        way.connect(("192.0.2.1", 1))  # nothing is sent: the way to any other machine shows our own address
        own = way.getsockname()[0]
    except OSError:  # machines with no way out of the cluster
        own = socket.gethostbyname(socket.gethostname())
    door.bind(("", 0))
    client.bind(("", 0))
    print(own, door.getsockname()[1], client.getsockname()[1])
PYTHON
)
export FEDRAY_HEAD="--head --port=$port --ray-client-server-port=$client --include-dashboard=false"
export FEDRAY_WORKER="--address=$head:$port" FEDRAY_SCRATCH="${TMPDIR:-/tmp}/ray-$SLURM_JOB_ID"
srun --kill-on-bad-exit=0 bash -c '
    ulimit -n 65536 2> /dev/null || true
    mkdir -p -m 700 "$FEDRAY_SCRATCH"
    # Its name can be guessed: one that another user made is not ours to write to.
    [ -O "$FEDRAY_SCRATCH" ] && [ ! -L "$FEDRAY_SCRATCH" ] && chmod 700 "$FEDRAY_SCRATCH" || {
        echo "slurm.sh: $FEDRAY_SCRATCH is not yours; set TMPDIR to a folder of your own" >&2
        exit 1
    }
    [ "$SLURM_NODEID" = 0 ] && place=$FEDRAY_HEAD || place=$FEDRAY_WORKER
    for attempt in 1 2 3 4 5; do  # the head may not listen yet
        ray start $place --block --disable-usage-stats --num-cpus="$SLURM_CPUS_PER_TASK" --temp-dir="$FEDRAY_SCRATCH" \
            --dashboard-agent-listen-port=0 > "$FEDRAY_SCRATCH/start.log" 2>&1 && break || sleep 3
    done
    tail -n 5 "$FEDRAY_SCRATCH/start.log"' &
machines=$!

leave() {  # the launch stops after its last checkpoint
    kill -TERM "$run" && wait "$run" || true
}
again() {
    echo "the job is ending: it goes on from its last checkpoint when it is requeued"
    leave
    scontrol requeue "$SLURM_JOB_ID"
}
end() {  # the run is over: nothing is lost with Ray's processes
    kill -TERM "$machines" 2> /dev/null && wait "$machines" || true
    srun --overlap rm -rf "$FEDRAY_SCRATCH" || true
}
trap end EXIT

python - "$head:$port" "$SLURM_JOB_NUM_NODES" << 'PYTHON' &
import sys, time
import ray
address, wanted = sys.argv[1], int(sys.argv[2])
deadline = time.monotonic() + 300
found = 0
while found < wanted:
    if time.monotonic() > deadline:
        sys.exit(f"after 300 s {found} of {wanted} machines are in the cluster at {address}")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=50)
        found = sum(node["Alive"] for node in ray.nodes())
        ray.shutdown()
    except Exception:  # the head is not up yet
        pass
    time.sleep(1)
PYTHON
waiting=$!
wait -n "$machines" "$waiting"
kill -0 "$machines" || { echo "Ray did not start on the machines, see above" >&2; exit 1; }

if [ -e "runs/$name/run.json" ]; then
    python -m fedray.launch --resume "runs/$name" --address "$head:$port" &
else
    python -m fedray.launch "$@" --name "$name" --address "$head:$port" &
fi
run=$!
trap again USR1
trap 'leave; exit 143' TERM  # of scancel, which means it, and of SLURM, which queues the job again by itself
wait "$run"
echo "result  runs/$name; to fetch it: rsync -a $(id -un)@$(hostname):$PWD/runs/$name runs/"
