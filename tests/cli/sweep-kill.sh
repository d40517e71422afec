#!/bin/sh
# usage: sweep-kill.sh FOLDER-OF-MOESIM
# Kills a sweep fifty times at moments all over its life and goes on each time; the file must be that of an undisturbed run,
# and after every kill its whole rows must be the first of that file. TAP on stdout.
set -eu
PATH=$1:$PATH
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >sweep.json <<'END'
{"base": {"model": "kimi-k3-mini", "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 8}},
 "grid": {"parallel.ep": [1, 2, 4, 8, 3], "loss.seq_chunk": {"from": 0, "to": 320, "step": 32}, "workload.seq_len": [64, 128, 256]},
 "constraints": ["loss.seq_chunk < workload.seq_len"]}
END
moesim sweep sweep.json -o want.csv >want.txt
# how long an undisturbed run takes, in thousandths of a second
start=$(date +%s%N)
moesim sweep sweep.json -o again.csv >/dev/null
whole=$((($(date +%s%N) - start) / 1000000))
echo 1..3
draw=7
killed=0
torn=0
broken=0
finished=0
while [ $killed -lt 50 ]; do
    moesim sweep sweep.json -o rows.csv --resume -j $((killed % 3 + 1)) >report.txt 2>error.txt &
    process=$!
    draw=$(((draw * 1103515245 + 12345) % 2147483648))
    wait_ms=$((draw / 65536 % (whole / 2 + 20) + 2))
    sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
    if kill -9 $process 2>/dev/null; then
        killed=$((killed + 1))
    fi
    rc=0
    wait $process 2>/dev/null || rc=$?
    if [ $rc = 0 ]; then
        cmp -s rows.csv want.csv && cmp -s report.txt want.txt || broken=$((broken + 1))
        finished=$((finished + 1))
        rm -f rows.csv
    elif [ $rc = 137 ]; then
        if [ -f rows.csv ]; then
            size=$(stat -c %s rows.csv)
            head -c "$size" want.csv | cmp -s - rows.csv || torn=$((torn + 1))
        fi
    else
        broken=$((broken + 1))
        sed 's/^/# /' error.txt
    fi
done
moesim sweep sweep.json -o rows.csv --resume >report.txt
[ $torn = 0 ] || printf 'not '
echo "ok 1 - after each of $killed kills the file is the beginning of the undisturbed one"
[ $broken = 0 ] || printf 'not '
echo "ok 2 - it went on every time ($finished runs came to their end before they were killed)"
cmp -s rows.csv want.csv && cmp -s report.txt want.txt || printf 'not '
echo 'ok 3 - in the end file and report are those of an undisturbed run'
