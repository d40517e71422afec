# Results of run: where they go, what they hold, and what happens when they cannot be written.

= plan.json
{"model": "llama-3.1-8b",
 "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 8},
 "workload": {"seq_len": 4096}, "memory": {"recompute": "full"}}
=

$ moesim plan.json
~ Model       llama-3.1-8b: 8.03 B parameters, *
~ Machine     1 x 8 NVIDIA H200 SXM *, 8 in all: FSDP 8
...
~ Step        * tokens/s per GPU, * in all
...
~ Memory      * of * GiB: fits
...
~ Evidence    step time rests on *
~ Units       GiB = 2^30 bytes; *
? 0

$ moesim plan.json > one; moesim run plan.json > two; cmp one two
? 0

# JSON alone on stdout, the same bytes each time, the names of the contract first.
$ moesim run plan.json --json > one.json; moesim run --json plan.json > two.json; cmp one.json two.json; head -4 one.json
{
  "schema": "moesim.result/1",
  "ranks": 8,
~   "step_time_s": *
? 0

$ grep -c -i nan one.json
0
? 1

# Every collective names its group, size and tier.
$ grep -A2 '"name": "all_gather' one.json | head -3
~       "name": "all_gather*
~       "tier": "scale-up",
~       "group_size": 8,
? 0

$ moesim plan.json -o out/dir > printed; ls out/dir; cmp printed out/dir/summary.txt
memory.csv
operators.csv
result.json
summary.txt
trace.json
? 0

$ moesim plan.json --json > json; cmp json out/dir/result.json
? 0

# The trace is JSON, one event a line; tables have the units in their names or say bytes.
$ head -2 out/dir/trace.json | tail -1; tail -1 out/dir/trace.json; head -1 out/dir/memory.csv
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"every rank of 8"}},
]}
"time_s","allocated","parameters","gradients","optimizer","activations","unsharded","dispatch","logits","cache","workspace"
? 0

$ head -1 out/dir/operators.csv
"phase","layers","operator","name","stream","law","dtype","m","n","k","groups","times","launches","seconds","flops","read_bytes","write_bytes","message_bytes","evidence"
? 0

# The same folder again: the same bytes, nothing else in it.
$ cp -r out/dir before; moesim plan.json -o out/dir > /dev/null; diff -r before out/dir
? 0

# A disk that is full: an error, the file as it was, and no result that says the rest is there.
$ mkdir full; ln -s /dev/full full/trace.json; moesim plan.json -o full; ls full
! moesim: full/trace.json: cannot write: No space left on device
trace.json
? 0

$ moesim plan.json -o full
! moesim: full/trace.json: cannot write: No space left on device
? 3

$ mkdir held held/memory.csv; moesim plan.json -o held
! ~ moesim: held/memory.csv: cannot write: *
? 3

$ moesim plan.json -o plan.json
! ~ moesim: plan.json: *
? 3

$ moesim plan.json -o /proc/nothing/here
! ~ moesim: /proc/nothing/here: *
? 3

$ moesim plan.json > /dev/full
! moesim: standard output: No space left on device
? 3

$ moesim plan.json --json > /dev/full
! moesim: standard output: No space left on device
? 3

$ moesim plan.json --json >&-
! moesim: standard output: Bad file descriptor
? 3

$ moesim plan.json --require-fit > /dev/null
? 0

$ moesim run
! moesim: run: expected PLAN.json; see `moesim run --help`
? 2

$ moesim run plan.json plan.json
! moesim: run: 'plan.json' is one word too many; see `moesim run --help`
? 2

$ moesim plan.json --jsn
! moesim: run: Unknown option --jsn; see `moesim run --help`
? 2

# What does not fit is said to, with what would have to change; it fails only on request.
= large.json
{"model": "llama-3.1-405b",
 "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 8},
 "workload": {"seq_len": 8192}}
=
$ moesim large.json
...
~ Memory      * GiB: DOES NOT FIT
...
~ To fit      *
...
? 0

# Policies fill budgets at even loads, and what skew makes of them is said; a cache that chooses stays within its budgets.
= skewed.json
{"model": "nemotron-3-nano-30b-a3b", "cluster": {"preset": "a100-sxm-80", "nodes": 4}, "parallel": {"ep": 2, "sharding": "zero1"},
 "workload": {"seq_len": 1024, "routing": {"kind": "zipf", "exponent": 1.2}}, "precision": {"parameters": "bf16"},
 "memory": {"recompute": "selective", "keep": ["matmul", "all_to_all"], "cache": {"policy": "cost_benefit", "hbm_bytes": 0, "ddr_bytes": "1 GiB"}}}
=
$ moesim skewed.json --json | grep -c 'is what a policy fills at even loads: the rank with the most rows holds'; sed 's/"zipf", "exponent": 1.2/"consecutive"/' skewed.json > even.json; moesim even.json --json | grep -c 'at even loads'
1
0
? 1

$ sed 's/cost_benefit/choice/' skewed.json > choice.json; moesim choice.json --json | grep -c 'at even loads'; moesim choice.json | grep 'budgets used'
0
~   budgets used: 0.00 of 0.00 GiB in HBM, 0.* of 1.00 GiB in DDR
? 0

# Where the host has too little memory the device is not blamed; where a budget is too large, one that fits is named.
= host.json
{"model": "deepseek-v3", "cluster": {"preset": "h200-sxm", "nodes": 32}, "parallel": {"ep": 8},
 "workload": {"seq_len": 32768}, "memory": {"recompute": "none", "offload_fraction": 1}}
=
$ moesim host.json > host.txt; grep -c "pinned host memory per GPU is more than its" host.txt; grep -c "too much on rank" host.txt
1
0
? 1

= budget.json
{"model": {"config": "llama-3.1-8b", "overrides": {"num_hidden_layers": 8}}, "cluster": {"preset": "a100-sxm-40", "nodes": 1},
 "workload": {"seq_len": 32768}, "memory": {"recompute": "selective", "cache": {"hbm_bytes": "60 GiB", "policy": "lru"}}, "loss": {"seq_chunk": 1024}}
=
$ moesim budget.json | grep -c 'memory.cache.hbm_bytes "fit": '
1
? 0

# A cache that is slower than no recomputation says so, and which budget was given.
$ sed 's/"recompute": "selective"/"recompute": "selective", "cache": {"hbm_bytes": "32 GiB"}/; s/"qwen3-30b-a3b"/{"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 8}}/' $SRC/workloads/presets/qwen3-30b-8.json > slower.json; moesim slower.json --json | grep -c -e 'without memory.cache fits and is faster' -e '"hbm_budget_bytes": 34359738368'; moesim slower.json | grep -e 'a micro-batch' -e 'a step in HBM'
2
~   cache (choice): of * results of a micro-batch * in HBM, 0 in DDR, * not; evicted 0
~   recomputation saved * a step, left *; one more GiB would save 0.0 ms a step in HBM, 0.0 ms in DDR
? 0

# A cache that chooses takes no more of a budget than there is room for.
$ sed 's/lru/choice/' budget.json > choice.json; moesim choice.json | grep -e fits -e 'budgets used'
~ Memory      * of * GiB: fits
~   largest loss.seq_chunk that fits: * tokens
~   budgets used: * of 60.00 GiB in HBM, 0.00 of 0.00 GiB in DDR
? 0

$ moesim large.json --require-fit > /dev/null
! moesim: large.json: does not fit in memory
? 1

# Paths are relative to the plan that names them, not to where one stands.
$ mkdir -p a/models; cp $SRC/tests/reference/models/llama-d2048.json a/models/m.json; sed 's#llama-3.1-8b#models/m.json#' plan.json > a/plan.json; moesim a/plan.json | head -1
~ Model       m: *
? 0

# What a plan leaves open is found: the budget that the device has left, with the chunk of the loss that suits it.
= fit.json
{"model": "llama-3.1-8b",
 "cluster": {"preset": "a100-sxm-40", "nodes": 1, "gpus_per_node": 8},
 "workload": {"seq_len": 32768}, "precision": {"parameters": "bf16"},
 "memory": {"recompute": "selective", "cache": {"hbm_bytes": "fit"}}, "loss": {"seq_chunk": "fit"}}
=

$ moesim fit.json | grep -e found -e used
  loss.seq_chunk found: 8192 tokens
~   budgets used: * GiB in HBM, what the device had left, 0.00 of 0.00 GiB in DDR
? 0

$ moesim check fit.json | grep streams
~   streams   * pairs of accesses that exclude one another are in order*
? 0

$ moesim run fit.json -o fit > /dev/null; ls fit | wc -l
5
? 0

# As many nodes as there may be take no longer than a few: ranks that are alike are one.
$ printf '{"model": "qwen3-30b-a3b", "cluster": {"preset": "h200-sxm", "nodes": 16777216}, "parallel": {"ep": 8}, "workload": {"global_batch": 134217728}}' > all.json; timeout 60 moesim run all.json --json | grep -E '"(ranks|network)"' | sort -u
      "network": "closed_form",
  "ranks": 134217728,
? 0

# What recomputation costs, and a host that is slower than its device: with a table of the host's for each copy-in, and without.
= host.json
{"model": {"config": "models/moe-64e-shared.json", "overrides": {"num_hidden_layers": 8}},
 "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 1},
 "workload": {"seq_len": 4096, "micro_batch": 4, "global_batch": 4}, "kernels": "eager",
 "memory": {"recompute": "selective"}}
=

$ mkdir -p models; cp $SRC/tests/reference/models/moe-64e-shared.json models; moesim host.json | grep -A1 -e "again:" -e works | head -3
~   backward computes * ms of kernels again: unpermute * ms, RoPE * ms and others
~   the host works * ms to issue it, * ms of that on tables for copy-ins of gradients,
~   * ms on fresh pages of copy-ins' tables (none with memory.host_keeps_pages)
? 0

$ sed 's/"selective"/"full", "host_keeps_pages": true/' host.json > keeps.json; moesim keeps.json | grep -A1 -e "again:" -e works | head -2
~   backward computes * ms of kernels again: grouped GEMM * ms, unpermute * ms and others
~   MFU*
? 0

$ moesim keeps.json --json | grep -E '"(recompute|host|host_tables|host_pages)_s"' | tr -d ' 0-9.,'
"recompute_s":
"host_s":
"host_tables_s":
"host_pages_s":
? 0

$ sed 's/"selective"/"full", "host_keeps_pages": 1/' host.json > wrong.json; moesim wrong.json
! moesim: wrong.json:4:54: memory.host_keeps_pages: must be true or false, not 1
? 2
