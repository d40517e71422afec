#!/bin/sh
# usage: golden-k3.sh TEST-GOLDEN-RANKS
# Golden training runs of K3 through ranks, from the folder beside the sources: weights of 4 MB are not shipped. TAP on stdout.
set -eu
golden=${MOESIM_SOURCE_ROOT:-.}/../shared/golden
if [ ! -d "$golden/train/k3-mini" ]; then
    echo "1..0 # SKIP no $golden/train/k3-mini: golden runs of K3 are not shipped"
    exit 0
fi
MOESIM_GOLDEN_DIR=$golden exec "$1" k3-mini
