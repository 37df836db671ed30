#!/bin/sh
# A run on a Slurm cluster that outlives its time limit: submit with `sbatch scripts/slurm.sh my-config.yaml`.
#
# Slurm sends SIGUSR1 five minutes before the limit. bertpt then saves at its next step and ends with exit code 3, and this
# script puts the job back into the queue; the same command goes on where it stopped. A job that is preempted gets SIGTERM,
# is saved likewise and requeued by Slurm itself. Adapt partition, account and sizes below to your site.
#
#SBATCH --job-name=bertpt
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%j.log
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G

config=${1:?usage: sbatch scripts/slurm.sh CONFIG [more arguments of bertpt run]}
shift

# The shell gets the signal (B: above) and hands it on; `wait` returns at once then, hence the second one.
# Compute nodes often have no network: run `bertpt download` on the login node before.
python -m bertpt run --config "$config" "$@" &
program=$!
trap 'kill -USR1 "$program"' USR1
trap 'kill -TERM "$program"' TERM
wait "$program"
code=$?
while kill -0 "$program" 2>/dev/null; do
    wait "$program"
    code=$?
done

if [ "$code" -eq 3 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
