# moesim model: what is said of a model, and of files that are none.

$ moesim model kimi-k3 | head -9
Model           kimi-k3
Type            kimi_k3
Layers          93: kda+dense, 22 x (2 x kda+moe, mla+moe, kda+moe), 2 x kda+moe, 2 x mla+moe
Sizes           hidden 7168, vocabulary 163840
Experts         896 experts, 16 active, 3584 -> 3072; shared width 6144
AttnRes         blocks of 12 layers
Parameters      2779931834976 (2.78 T)
Active          105364017760 (105 B)
- embedding     104189612640 (104 B)
? 0

$ moesim model mixtral-8x7b --json | grep -A3 '"parameters": {'
  "parameters": {
    "total": 46702792704,
    "active": 12879925248,
    "active_without_embedding": 12748853248,
? 0

$ moesim model llama-3.1-8b --seq-len 0
! moesim: --seq-len: must lie in 1..2^26
? 2

$ moesim model kimi-k4
! ~ moesim: model "kimi-k4" is neither a preset nor a file; did you mean "kimi-k3"?; presets: *
? 2

$ moesim model nowhere/config.json
! moesim: nowhere/config.json: cannot read: No such file or directory
? 3

= small.json
{"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
 "intermediate_size": 96, "num_attention_heads": 4,
 "num_local_experts": 8,
 "num_experts_per_tokn": 2}
=
$ moesim model small.json
! moesim: small.json:4:26: num_experts_per_tokn: unknown field; did you mean "num_experts_per_tok"?
? 2

= other.json
{"model_type": "zamba9"}
=
$ moesim model other.json
! ~ moesim: other.json:1:16: model_type: "zamba9" models are not known*; known: llama, *
? 2

# Without a model, the presets.
$ moesim model | grep -x -e kimi-k3 -e mixtral-8x22b
kimi-k3
mixtral-8x22b
? 0
