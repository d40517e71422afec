# A plan's program on virtual ranks.

$ printf '{"model": "qwen3-30b-a3b", "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 4}, "parallel": {"dp_shard": 4, "ep": 2}, "workload": {"seq_len": 64, "global_batch": 8}}' > plan.json; moesim check plan.json
~ plan.json: the program computes what one rank computes
~   reduced   layers 48 -> 3, ranks 4 -> 4 (dp_replicate 1, dp_shard 4, ep 2 -> 2)*
~   ran       4 virtual ranks, 3 steps in float64, * instructions a step and rank
...
? 0

$ moesim check plan.json --json
! ~ moesim: *have no effect on a plan*
? 2
