# moesim calibrate: tables in, descriptor and errors out.

= op_host_link.csv
name,mib,seconds,flops,bytes
h2d_pinned,1,0.00003,0,1048576
h2d_pinned,64,0.0013,0,67108864
h2d_pinned,1024,0.0195,0,1073741824
d2h_pinned,1,0.00003,0,1048576
d2h_pinned,2048,0.039,0,2147483648
d2h_pageable,1,0.0001,0,1048576
=

$ moesim calibrate op_host_link.csv -o hw.json | head -5
Errors in %, predicted against measured; large: over rows above 20 us, transfers of 1 MiB and more;
left out: of each shape, by a fit without it

law                         rows  mean abs   large  left out    bias   worst  worst row
~ host_link                      5 *
? 0

$ moesim hw hw.json | grep -c "^host_link .*5 rows"
1
? 0

= op_gemm.csv
name,m,n,seconds
nt_forward,1,2,0.1
=

$ moesim calibrate op_gemm.csv
! moesim: op_gemm.csv:1: no column "k", which rows named "nt_forward" need
? 2

$ moesim calibrate
! ~ moesim: *
? 2
