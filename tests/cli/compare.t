# Two results side by side, and the bound that a performance check puts on their difference.

= a.json
{"schema": "moesim.result/1", "step_time_s": 1.0, "mfu": null, "time": {"forward_s": 0.25},
 "peak_memory_bytes": 10737418240, "fits": true, "warnings": ["x"]}
=
= b.json
{"schema": "moesim.result/1", "step_time_s": 1.1, "mfu": 0.5, "time": {"forward_s": 0.3},
 "peak_memory_bytes": 5368709120, "fits": true, "warnings": []}
=
$ moesim compare a.json b.json
value              A          B         change
                                             %
step_time_s        1.000 s    1.100 s    10.00
time.forward_s     250 ms     300 ms     20.00
peak_memory_bytes  10.00 GiB  5.00 GiB  -50.00
fits               yes        yes         0.00
GiB = 2^30 bytes
? 0

$ moesim compare a.json b.json --fail-above 5 > /dev/null
! moesim: compare: step_time_s: 10.000 % more, over 5 %
? 1

$ moesim compare a.json b.json --fail-above 10.5 > /dev/null
? 0

$ moesim compare b.json a.json --fail-above 5 > /dev/null
! moesim: compare: peak_memory_bytes: 100.000 % more, over 5 %
? 1

$ sed 's/true/false/' a.json > no.json; moesim compare a.json no.json --fail-above 5 > /dev/null
! moesim: compare: no longer fits in memory
? 1

$ echo '{"schema": "moesim.result/1"}' > none.json; moesim compare a.json none.json --fail-above 5 > /dev/null
! moesim: compare: step_time_s: cannot be compared; peak_memory_bytes: cannot be compared
? 1

$ moesim compare none.json none.json
! moesim: compare: none.json holds no number, so there is nothing to compare
? 2

$ echo '{"schema": "moesim.result/9"}' > other.json; moesim compare a.json other.json
! moesim: other.json: schema: expected "moesim.result/1"
? 2

$ moesim compare a.json b.json --fail-above -3
! moesim: --fail-above: expected a number of percent, 0 or more
? 2

$ moesim compare a.json
! moesim: compare: expected A.json B.json; see `moesim compare --help`
? 2

$ moesim compare a.json nowhere.json
! moesim: nowhere.json: cannot read: No such file or directory
? 3

# A plan is predicted first: its own result is no different.
= plan.json
{"model": "llama-3.1-8b", "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 8}}
=
$ moesim plan.json --json > result.json; moesim compare plan.json result.json --fail-above 0 > /dev/null
? 0
