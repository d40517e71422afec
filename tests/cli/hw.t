# moesim hw: presets, and where a value comes from.

$ moesim hw | cut -c1-40 | head -4
a100-sxm-40         312 TFLOP/s bf16   3
a100-sxm-80         312 TFLOP/s bf16   7
ascend-910b         354 TFLOP/s bf16    
ascend-910b-313     295 TFLOP/s bf16    
? 0

$ moesim hw h200-sxm | grep -E "^(peak_bf16|workspace_bytes)"
~ workspace_bytes          64 MiB           high    measured training steps*
~ peak_bf16                989 TFLOP/s      high    *dense*
? 0

$ moesim hw gb200 | grep -E "^(Timing|domain_gpus|eager_op_ns)"
~ domain_gpus              72               high    *
~ eager_op_ns              * (taken over from h200-sxm)
Timing laws, taken over with this device's datasheet values from h200-sxm
? 0

$ moesim hw h100-sxm --json | grep -A2 '"key": "peak_fp8"'
~ *"key": "peak_fp8"*
~ *1979 TFLOP/s*
~ *"source"*
? 0

$ moesim hw h100
! ~ moesim: no hardware preset "h100"; did you mean "h100-sxm"?*
? 2

$ moesim hw nowhere.json
! ~ moesim: nowhere.json: *
? 3
