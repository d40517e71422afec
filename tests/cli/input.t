# Every kind of bad plan: what is said, and that nothing is printed on stdout.

$ moesim nowhere.json
! moesim: nowhere.json: cannot read: No such file or directory
? 3

$ moesim run nowhere
! moesim: nowhere: cannot read: No such file or directory
? 3

$ mkdir folder.json; moesim folder.json
! moesim: folder.json: cannot read: Is a directory
? 3

$ : > empty.json; moesim empty.json
! ~ moesim: empty.json:1:*
? 2

= broken.json
{"model": "kimi-k3",
 "cluster": }
=
$ moesim broken.json
! ~ moesim: broken.json:2:1*: *
? 2

$ printf '{"model": "\377"}' > bytes.json; moesim bytes.json
! ~ moesim: bytes.json:1:*byte 0xff*
? 2

$ head -c 100000 /dev/zero | tr '\0' '[' > deep.json; moesim deep.json
! ~ moesim: deep.json:1:*
? 2

$ echo '{"model": "kimi-k3", "cluster": {"preset": "h200-sxm", "nodes": 1000000000000000000000000000000}}' > vast.json; moesim vast.json
! ~ moesim: vast.json:1:*: this number is too large: a whole one has at most 64 bits, any other is at most 1.8e308
? 2

$ echo '{"model": "kimi-k3", "cluster": {"preset": "h200-sxm", "nodes": 1e999}}' > vast.json; moesim vast.json
! ~ moesim: vast.json:1:*: this number is too large: *
? 2

$ printf '{"model": "kimi\\u0000-k3"}' > nul.json; moesim nul.json
! ~ moesim: nul.json:1:*: a text holds the character ?u0000, which none here may
? 2

# What is quoted of long values is cut short.
$ a=$(head -c 100000 /dev/zero | tr '\0' a); for f in '"cluster": {"preset": "'$a'"}' '"memory": {"offload_fraction": 0.5, "offload_min_bytes": "'$a'"}' '"loss": {"seq_chunk": "'$a'"}' '"kernels": "'$a'"' '"'$a'": 1'; do printf '{"model": "llama-3.1-8b", %s}' "$f" > long.json; moesim long.json 2>&1 | wc -c; done | sort -n | tail -1 | grep -c '^[1-9][0-9]\{1,2\}$'
1
? 0

$ head -c 4096 /dev/urandom > noise.json; moesim noise.json 2>&1 | cut -c1-8
moesim: 
? 0

$ echo '[1, 2]' > list.json; moesim list.json
! ~ moesim: list.json:*object*
? 2

$ echo '{}' > nothing.json; moesim nothing.json
! ~ moesim: nothing.json:*model: *
? 2

$ echo '{"model": "llama-3.1-8b", "model": "kimi-k3"}' > twice.json; moesim twice.json
! ~ moesim: twice.json:1:*duplicate*
? 2

$ echo '{"model": "llama-3.1-8b", "cluster": {"preset": "h200-sxm"}} x' > tail.json; moesim tail.json
! ~ moesim: tail.json:1:*
? 2

# Each of these differs from a good plan in one field: the place and a way out are named.
= plan.sh
# usage: plan.sh FIELDS; runs a small plan with these further top-level fields
printf '{"model": "llama-3.1-8b",\n "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 8}%s}\n' "$1" > plan.json
moesim plan.json
=

$ sh plan.sh ', "paralel": {}'
! ~ moesim: plan.json:2:*: paralel: *"parallel"*
? 2

$ sh plan.sh ', "epoch_num": 3'
! ~ moesim: plan.json:2:*: epoch_num: *
? 2

$ sh plan.sh ', "parallel": {"dp_shards": 8}'
! ~ moesim: plan.json:2:*: parallel.dp_shards: *"dp_shard"*
? 2

$ sh plan.sh ', "workload": {"seq_len": "long"}'
! ~ moesim: plan.json:2:*: workload.seq_len: *
? 2

$ sh plan.sh ', "workload": {"seq_len": 4096.5}'
! ~ moesim: plan.json:2:*: workload.seq_len: *
? 2

$ sh plan.sh ', "workload": {"seq_len": -1}'
! ~ moesim: plan.json:2:*: workload.seq_len: *
? 2

$ sh plan.sh ', "workload": {"seq_len": 9223372036854775807}'
! ~ moesim: plan.json:2:*: workload.seq_len: *
? 2

$ sh plan.sh ', "workload": {"seq_len": 99999999999999999999}'
! ~ moesim: plan.json:2:*
? 2

$ sh plan.sh ', "workload": {"seq_len": 1e999}'
! ~ moesim: plan.json:2:*
? 2

$ sh plan.sh ', "workload": {"seq_len": NaN}'
! ~ moesim: plan.json:2:*
? 2

$ sh plan.sh ', "workload": []'
! ~ moesim: plan.json:2:*: workload: *
? 2

$ sh plan.sh ', "workload": {"mode": "pretrian"}'
! ~ moesim: plan.json:2:*: workload.mode: *"pretrain"*
? 2

$ sh plan.sh ', "precision": {"parameters": "fp16"}'
! ~ moesim: plan.json:2:*: precision.parameters: *
? 2

$ sh plan.sh ', "kernels": {"kdaa": "eager"}'
! ~ moesim: plan.json:2:*: kernels.kdaa: *"kda"*
? 2

# What is not modelled is refused by name, never ignored.
$ sh plan.sh ', "parallel": {"pp": 2}'
! ~ moesim: plan.json:2:*: parallel.pp: *not modelled*
? 2

$ sh plan.sh ', "moe": {"capacity_factor": 1.25}'
! ~ moesim: plan.json:2:*: moe: *has no experts*
? 2

$ sh plan.sh ', "workload": {"image_tokens": 5}'
! ~ moesim: plan.json:2:*: workload.image_tokens: *not modelled*
? 2

$ sh plan.sh ', "parallel": {"tp": 2}'
! ~ moesim: plan.json:2:*: parallel.tp: *not modelled*
? 2

$ sh plan.sh ', "parallel": {"cp": 2}'
! ~ moesim: plan.json:2:*: parallel.cp: *not modelled*
? 2

$ sh plan.sh ', "memory": {"offload_fraction": 1.5}'
! ~ moesim: plan.json:2:*: memory.offload_fraction: must be a number from 0 to 1, not 1.5*
? 2

# So is what has no effect.
$ sh plan.sh ', "workload": {"lora": {"rank": 8}}'
! ~ moesim: plan.json:2:*: workload.lora: *
? 2

$ sh plan.sh ', "workload": {"routing": {"kind": "zipf"}}'
! ~ moesim: plan.json:2:*: workload*experts*
? 2

# Degrees that do not divide: both numbers are named, and a legal one.
$ sh plan.sh ', "parallel": {"dp_shard": 3}'
! ~ moesim: plan.json:2:*: parallel*3*8*
? 2

$ sh plan.sh ', "parallel": {"ep": 4}'
! ~ moesim: plan.json:2:*: parallel.ep: 4 needs*experts*
? 2

$ sh plan.sh ', "workload": {"global_batch": 23}'
! ~ moesim: plan.json:2:*: workload.global_batch: 23 is no*8*
? 2

= bad-model.json
{"model": "kimi-k4", "cluster": {"preset": "h200-sxm"}}
=
$ moesim bad-model.json
! ~ moesim: bad-model.json:1:*: model: *kimi-k4*kimi-k3*
? 2

= bad-device.json
{"model": "kimi-k3", "cluster": {"preset": "h200-smx"}}
=
$ moesim bad-device.json
! ~ moesim: bad-device.json:1:*: cluster*h200-smx*h200-sxm*
? 2

= no-file.json
{"model": "models/none.json", "cluster": {"preset": "h200-sxm"}}
=
$ moesim no-file.json
! moesim: no-file.json:1:11: model: models/none.json: cannot read: No such file or directory
? 3

# A device without a peak for the compute type has no utilisation to be told; no other device's peak stands in.
$ sed 's/"peak_bf16"/"peak_tf32"/' $SRC/hw/presets/h200-sxm.json > device.json; echo '{"model": "llama-3.1-8b", "cluster": {"file": "device.json"}}' > no-peak.json; moesim no-peak.json
! ~ moesim: no-peak.json:1:*: cluster: *peak_*
? 2

$ echo '{"model": "llama-3.1-8b", "cluster": {"preset": "v100"}}' > no-device.json; moesim no-device.json
! ~ moesim: no-device.json:1:*: cluster: no hardware preset "v100"*
? 2

# Legal numbers that ask for too much are refused at once.
$ sh plan.sh ', "workload": {"global_batch": 1000000000}'
! ~ moesim: plan.json:2:*: workload.global_batch: 125000000 micro-batches per rank make a step of more than nine years*
? 2

$ sh plan.sh ', "loss": {"seq_chunk": 1, "vocab_chunk": 1}'
! ~ moesim: plan.json:2:*: loss: seq_chunk 1 and vocab_chunk 1 make 4096 x 128256 chunks*
? 2

$ sh plan.sh ', "workload": {"seq_len": 67108864, "micro_batch": 16}, "loss": {"seq_chunk": 1000000}'
! ~ moesim: plan.json:2:*: workload: one attention takes more than ten hours*
? 2

# Adapters on parts that a model has not.
= no-target.json
{"model": "gpt-oss-120b", "cluster": {"preset": "h200-sxm"}, "workload": {"mode": "lora", "lora": {"targets": ["shared"]}}}
=
$ moesim no-target.json
! ~ moesim: no-target.json:1:*: workload.lora.targets: gpt-oss-120b has none of these parts*
? 2

$ echo '{"model": {"config": null}}' > null.json; moesim null.json
! ~ moesim: null.json:1:*: model.config: missing*
? 2

$ echo '{"model": {"config": "llama-3.1-8b", "overrides": {"tie_word_embeddings": true}}, "cluster": {"preset": "h200-sxm"}}' > tied.json; moesim tied.json
! ~ moesim: tied.json:1:*: model: llama-3.1-8b ties the head to the embedding, which is not modelled yet*
? 2
