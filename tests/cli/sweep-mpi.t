# A sweep over the processes of an MPI job: the same bytes, and a lost process loses no finished row.

= sweep.json
{"base": {"model": "kimi-k3-mini", "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 8}},
 "grid": {"parallel.ep": [1, 2, 4, 8, 3], "loss.seq_chunk": {"from": 0, "to": 224, "step": 32}, "workload.seq_len": [64, 128, 256]},
 "constraints": ["loss.seq_chunk < workload.seq_len"], "top": 3}
=
$ moesim sweep sweep.json -o want.csv > want.txt
? 0

$ for n in 1 2 3 4; do mpirun --oversubscribe -n $n moesim sweep sweep.json -o rows.csv > report.txt && cmp rows.csv want.csv && cmp report.txt want.txt && ls rows.csv*; done
rows.csv
rows.csv
rows.csv
rows.csv
? 0

$ mpirun --oversubscribe -n 2 moesim sweep sweep.json -o rows.csv -j 2 > report.txt && cmp rows.csv want.csv; mpirun --oversubscribe -n 3 moesim sweep sweep.json -o rows.jsonl > report.txt && cmp report.txt want.txt
? 0

# Shards of several processes each.
$ for k in 1 2; do mpirun --oversubscribe -n 2 moesim sweep sweep.json -o part$k.csv --shard $k/2 > report.txt; done; moesim sweep sweep.json --merge part1.csv part2.csv -o rows.csv | cmp - want.txt; cmp rows.csv want.csv
? 0

# A mistake is said once, by one of them.
$ mpirun --oversubscribe -n 3 moesim sweep nowhere.json -o rows.csv
! moesim: nowhere.json: cannot read: No such file or directory
! ...
? 3

$ mpirun --oversubscribe -n 3 moesim sweep sweep.json -o /dev/full
! moesim: /dev/full: cannot write: No space left on device
! ...
? 3

# One process is killed: the file holds whole rows, and is gone on with, by any number of processes.
= long.json
{"base": {"model": "kimi-k3", "cluster": {"preset": "h200-sxm", "nodes": 64, "gpus_per_node": 8}},
 "grid": {"workload.global_batch": {"from": 512, "to": 512000, "step": 512}, "workload.seq_len": {"from": 1024, "to": 9000, "step": 1}}}
=
$ mpirun --oversubscribe -n 3 sh -c 'echo $$ > pid.$OMPI_COMM_WORLD_RANK; exec moesim sweep long.json -o long.csv' > /dev/null 2>&1 & while test $(cat long.csv 2>/dev/null | wc -l) -lt 3; do sleep 0.05; done; kill -9 $(cat pid.2); wait $!; test $? -ne 0; tail -c 1 long.csv | od -c | head -1; ls long.csv.resume
0000000  \n
long.csv.resume
? 0

$ cp long.csv before; mpirun --oversubscribe -n 2 sh -c 'echo $$ > pid.$OMPI_COMM_WORLD_RANK; exec moesim sweep long.json -o long.csv --resume' > /dev/null 2>&1 & while test $(cat long.csv | wc -l) -le $(cat before | wc -l); do sleep 0.05; done; kill -INT $(cat pid.0); wait $!; echo $?; head -c $(stat -c %s before) long.csv | cmp - before
130
? 0

$ : > all.csv; moesim sweep long.json > all.csv & while test $(cat all.csv | wc -l) -lt $(cat long.csv | wc -l); do sleep 0.05; done; kill -9 $!; wait $! 2> /dev/null; head -c $(stat -c %s long.csv) all.csv | cmp - long.csv
? 0
