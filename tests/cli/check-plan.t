# A plan's program on virtual ranks.

$ printf '{"model": "qwen3-30b-a3b", "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 4}, "parallel": {"dp_shard": 4, "ep": 2}, "workload": {"seq_len": 64, "global_batch": 8}}' > plan.json; moesim check plan.json
~ plan.json: the program computes what one rank computes
~   reduced   layers 48 to 3, experts 128 to 8*
~   ran       4 virtual ranks, 3 steps in float64, * instructions a step and rank,
~             * operators a forward pass, 0 of them eager*
...
? 0

$ moesim check plan.json --json
{
  "schema": "moesim.proof/1",
  "plan": "plan.json",
  "passed": true,
  "fault": null,
...
? 0

$ printf '{"model": "mixtral-8x7b", "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 4}, "parallel": {"ep": 2}, "workload": {"seq_len": 64, "global_batch": 8}, "moe": {"balance": "aux_loss", "aux_loss_scope": "global_batch", "z_loss_coeff": 0.001}}' > losses.json; moesim check losses.json
~ losses.json: the program computes what one rank computes
~   reduced   layers 32 to 3*
~   ran       4 virtual ranks, 3 steps in float64, * instructions a step and rank,
~             * operators a forward pass, 0 of them eager*
~   values    losses (6 of layers beside the main one) within *
...
? 0

$ moesim check plan.json --tolerance-report
! ~ moesim: *have no effect on plans*
? 2

$ moesim check --plans 3 --seed 7
3 drawn plans (seeds 7 to 9): every program computes what one rank computes
...
? 0

$ moesim check --plans 1 --json
{
  "schema": "moesim.drawn/1",
  "seed": 1,
  "plans": 1,
  "proven": 1,
...
? 0

$ moesim check --plans 0
! ~ moesim: *--plans: 0 is out of range; 1 to 1000000 is possible*
? 2

$ moesim check --plans 2 --seed -1
! ~ moesim: *--seed: -1 is out of range; 0 to 2^31 - 1 is possible*
? 2

$ moesim check --plans 2 plan.json
! ~ moesim: *--plans draws plans, so plan.json has no effect*
? 2

$ moesim check --seed 2
! ~ moesim: *--seed has no effect without --plans*
? 2

# Every way of rows to their experts, shared experts running meanwhile.
$ for way in all_to_all hierarchical all_gather deepep hybridep; do printf '{"model": {"config": "kimi-k2-instruct", "overrides": {"num_hidden_layers": 2}}, "cluster": {"preset": "h200-sxm", "nodes": 2, "gpus_per_node": 2}, "parallel": {"ep": 4}, "moe": {"dispatch": "%s", "shared_overlap": true}, "workload": {"seq_len": 64, "global_batch": 4}}' $way > way.json; moesim check way.json | head -1; done
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
? 0

# The same while another micro-batch computes.
$ for way in all_to_all hierarchical all_gather deepep hybridep; do printf '{"model": {"config": "deepseek-v3", "overrides": {"num_hidden_layers": 5}}, "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 4}, "parallel": {"ep": 4, "sharding": "none"}, "precision": {"parameters": "bf16"}, "moe": {"dispatch": "%s", "overlap_micro_batches": true}, "memory": {"recompute": "selective", "keep": ["attention", "grouped_matmul"]}, "workload": {"seq_len": 64, "global_batch": 28}}' $way > way.json; moesim check way.json | head -1; done
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
? 0

# The same in chunks of tokens, some kept and some computed again.
$ for way in all_to_all hierarchical all_gather deepep hybridep; do printf '{"model": {"config": "kimi-k2-instruct", "overrides": {"num_hidden_layers": 2}}, "cluster": {"preset": "h200-sxm", "nodes": 2, "gpus_per_node": 2}, "parallel": {"ep": 4}, "moe": {"dispatch": "%s", "shared_overlap": true, "overlap_chunks": 4}, "memory": {"recompute": "selective", "keep": ["attention", "grouped_matmul"]}, "workload": {"seq_len": 64, "global_batch": 8}}' $way > way.json; moesim check way.json | head -1; done
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
way.json: the program computes what one rank computes
? 0

# Operators that have a cost alone.
$ printf '{"model": "nemotron-3-nano-30b-a3b", "cluster": {"preset": "h200-sxm", "gpus_per_node": 2}, "workload": {"seq_len": 8}}' > mamba.json; moesim check mamba.json
! ~ moesim: mamba.json: *has no reference kernel, so a program of * cannot be run in values*
? 2

# A prime number of ranks, too many of them.
$ printf '{"model": {"config": "llama-3.1-8b", "overrides": {"num_hidden_layers": 1}}, "cluster": {"preset": "h200-sxm", "nodes": 127, "gpus_per_node": 1}, "workload": {"seq_len": 1}}' > prime.json; moesim check prime.json
~ prime.json: the program computes what one rank computes
~   reduced   ranks 127 to 64, FSDP degree 127 to 64*
...
? 0

# Chains of framework operators, all or some of them.
$ for kernels in '"eager"' '{"default": "eager", "kda": "fused"}'; do printf '{"model": "kimi-k3", "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 4}, "parallel": {"ep": 2}, "kernels": %s, "workload": {"mode": "lora", "seq_len": 64}, "memory": {"recompute": "selective"}}' "$kernels" > chain.json; moesim check chain.json | grep -E "computes|eager"; done
chain.json: the program computes what one rank computes
~             258 operators a forward pass, 258 of them eager: backward reads what their chains keep
chain.json: the program computes what one rank computes
~             258 operators a forward pass, 255 of them eager: backward reads what their chains keep
? 0

# Measured loads, reduced, are what the routers of the virtual ranks send: for all sources, source by source, cut by a capacity.
$ echo '[[900, 500, 200, 100, 80, 60, 40, 0]]' > all.json; echo '[[[9, 1, 1, 1, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7]]]' > each.json; for way in 'all.json|1|{}' 'each.json|2|{"dispatch": "deepep"}' 'all.json|4|{"capacity_factor": 0.7, "drop": "probability", "redundant_experts": 4, "placement": "eplb"}'; do printf '{"model": {"config": "mixtral-8x7b", "overrides": {"num_hidden_layers": 2}}, "cluster": {"preset": "h200-sxm", "gpus_per_node": 4}, "parallel": {"ep": %s}, "moe": %s, "workload": {"seq_len": 64, "global_batch": 8, "routing": {"kind": "measured", "load_file": "%s"}}}' "$(echo "$way" | cut -d'|' -f2)" "$(echo "$way" | cut -d'|' -f3)" "$(echo "$way" | cut -d'|' -f1)" > loads.json; moesim check loads.json | grep -oE "loss within|expert loads equal.*"; done
loss within
expert loads equal, and those measured
loss within
expert loads equal, and those measured
loss within
expert loads equal, and those measured
? 0
