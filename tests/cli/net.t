# Transfers that share links: known times, every level, and tables that cannot be used.

= hw.json
{"name": "island", "like": "h200-sxm", "values": {
  "peak_bf16": {"value": "989 TFLOP/s", "source": "s"}, "hbm_bytes": {"value": "141 GB", "source": "s"},
  "hbm_bytes_per_s": {"value": "4.8 TB/s", "source": "s"}, "n_sms": {"value": 132, "source": "s"},
  "host_link_bytes_per_s": {"value": "50 GB/s", "source": "s"},
  "gpus_per_node": {"value": 8, "source": "s"}, "domain_gpus": {"value": 8, "source": "s"},
  "scale_up_bytes_per_s": {"value": "400 GB/s", "source": "s"}, "scale_out_bytes_per_s": {"value": "50 GB/s", "source": "s"}}}
=
= few.csv
id,from_rank,to_rank,bytes,start_s
alone,0,1,400 GB,0
hot1,2,9,25e9,1
hot2,3,9,25000000000,1
later,4,5,40GB,3.5
back,6,host0,50 GB,0
=
$ moesim net few.csv --cluster hw.json
"id","from_rank","to_rank","bytes","start_s","finish_s","mean_bytes_per_s","level","narrowest_link"
"alone","0","1",400000000000,0,1,400000000000,"closed_form","rank 0 scale-up out"
"hot1","2","9",25000000000,1,2,25000000000,"flow","node 1 NIC 1 in"
"hot2","3","9",25000000000,1,2,25000000000,"flow","node 1 NIC 1 in"
"later","4","5",40000000000,3.5,3.6,400000000000,"closed_form","rank 4 scale-up out"
"back","6","host0",50000000000,0,1,50000000000,"closed_form","rank 6 host link in"
? 0

$ moesim net few.csv --cluster hw.json --json | head -9
{
  "schema": "moesim.net/1",
  "ranks": 16,
  "finish_s": 3.6,
  "busiest_link": "rank 0 scale-up out",
  "busiest_link_s": 1.0,
  "closed_form": 3,
  "flows": 2,
  "transfers": [
? 0

# Latency comes on top where a domain is left (taken over from the descriptor that it is like: 14 us).
$ moesim net few.csv --cluster hw.json --latency | grep -E 'alone|hot1' | cut -d, -f1,6
"alone",1
"hot1",2.000014
? 0

# Nodes: as many as the ranks need, or as many as said.
$ moesim net few.csv --cluster hw.json --nodes 1
! moesim: few.csv:3: to_rank: '9' is not in the cluster, which has 1 nodes of 8 GPUs
? 2

# With four GPUs a node, ranks 3 and 4 share no domain.
= few2.csv
from_rank,to_rank,bytes
3,4,50e9
=
$ moesim net few2.csv --cluster hw.json --gpus-per-node 4
"id","from_rank","to_rank","bytes","start_s","finish_s","mean_bytes_per_s","level","narrowest_link"
"","3","4",50000000000,0,1,50000000000,"closed_form","node 0 NIC 3 out"
? 0

# Whole all-to-alls with known ends: every flow's, within the accuracy of the file.
$ for kind in n16_uniform n16_zipfdst n64_zipfpair; do f=$SRC/tests/reference/flows/all_to_all_$kind.csv; (echo from_rank,to_rank,bytes; tail -n +2 $f | cut -d, -f1-3) > all.csv; moesim net all.csv --cluster hw.json | tail -n +2 | cut -d, -f6 > got; tail -n +2 $f | cut -d, -f4 | paste -d, - got | awk -F, '{ e = $2 / $1 - 1; if (e < 0) e = -e; if (e > 1e-8) bad++; n++ } END { print n, "rows,", bad + 0, "off" }'; done
240 rows, 0 off
240 rows, 0 off
4032 rows, 0 off
? 0

# ---- mistakes ----

$ moesim net few.csv
! moesim: net: --cluster is missing: a hardware preset ("moesim hw" lists them) or the path of a descriptor
? 2

$ moesim net few.csv --cluster h200
! ~ moesim: no hardware preset "h200"; did you mean "h200-sxm"?*
? 2

$ for n in -1 0 16777217 999999999; do moesim net few.csv --cluster hw.json --nodes $n; done
! moesim: net: --nodes: -1 is not a number from 1 to 16777216
! moesim: net: --nodes: 0 is not a number from 1 to 16777216
! moesim: net: --nodes: 16777217 is not a number from 1 to 16777216
! moesim: net: --nodes: 999999999 is not a number from 1 to 16777216
? 2

$ for n in -2 0 9; do moesim net few.csv --cluster hw.json --gpus-per-node $n; done
! moesim: net: --gpus-per-node: -2 is not a number from 1
! moesim: net: --gpus-per-node: 0 is not a number from 1
! ~ moesim: cluster hw.json: gpus_per_node 9 is more than its nodes have, 8; *
? 2

$ moesim net nothing.csv --cluster hw.json
! ~ moesim: nothing.csv: *No such file*
? 3

$ moesim net
! ~ moesim: net: *
? 2

= none.csv
id,from_rank,to_rank,bytes,start_s
=
$ moesim net none.csv --cluster hw.json
! moesim: none.csv: no transfers below the header
? 2

$ echo from_rank,to_rank > t.csv; echo 0,1 >> t.csv; moesim net t.csv --cluster hw.json
! moesim: t.csv:1: no column "bytes"; a table of transfers has id, from_rank, to_rank, bytes, start_s
? 2

$ echo from_rank,to_rank,bytes,starts > t.csv; echo 0,1,1,0 >> t.csv; moesim net t.csv --cluster hw.json
! moesim: t.csv:1: starts: unknown column; did you mean "start_s"?
? 2

$ echo from_rank,to_rank,bytes,weight > t.csv; echo 0,1,1,0 >> t.csv; moesim net t.csv --cluster hw.json
! moesim: t.csv:1: weight: unknown column; columns are id, from_rank, to_rank, bytes, start_s
? 2

$ for row in 0,x,1,0 -1,1,1,0 0,1.5,1,0 0,,1,0 0,hostx,1,0 0,1,-1,0 0,1,nan,0 0,1,inf,0 0,1,much,0 0,1,"9 EB",0 0,1,,0 0,1,1,-1 0,1,1,nan 0,1,1,1e10 0,1,1,soon; do echo from_rank,to_rank,bytes,start_s > t.csv; echo "$row" >> t.csv; moesim net t.csv --cluster hw.json; done
! moesim: t.csv:2: to_rank: 'x' is no rank: expected a whole number from 0, or host0 for the memory of node 0
! moesim: t.csv:2: from_rank: '-1' is no rank: expected a whole number from 0, or host0 for the memory of node 0
! moesim: t.csv:2: to_rank: '1.5' is no rank: expected a whole number from 0, or host0 for the memory of node 0
! moesim: t.csv:2: to_rank: '' is no rank: expected a whole number from 0, or host0 for the memory of node 0
! moesim: t.csv:2: to_rank: 'hostx' is no rank: expected a whole number from 0, or host0 for the memory of node 0
! moesim: t.csv:2: bytes: '-1' is no size: expected bytes from 0, or a size with a unit ("8 MiB")
! moesim: t.csv:2: bytes: 'nan' is no size: expected bytes from 0, or a size with a unit ("8 MiB")
! moesim: t.csv:2: bytes: 'inf' is no size: expected bytes from 0, or a size with a unit ("8 MiB")
! moesim: t.csv:2: bytes: 'much' is no size: expected bytes from 0, or a size with a unit ("8 MiB")
! moesim: t.csv:2: bytes: '9 EB' is no size: expected bytes from 0, or a size with a unit ("8 MiB")
! moesim: t.csv:2: bytes: '' is no size: expected bytes from 0, or a size with a unit ("8 MiB")
! moesim: t.csv:2: start_s: '-1' is no time: expected seconds from 0 to 1e9
! moesim: t.csv:2: start_s: 'nan' is no time: expected seconds from 0 to 1e9
! moesim: t.csv:2: start_s: '1e10' is no time: expected seconds from 0 to 1e9
! moesim: t.csv:2: start_s: 'soon' is no time: expected seconds from 0 to 1e9
? 2

$ for row in 3,3 host0,host0 host1,3; do echo from_rank,to_rank,bytes > t.csv; echo "$row,1" >> t.csv; moesim net t.csv --cluster hw.json; done
! moesim: t.csv:2: both ends are the same; a transfer goes from one place to another
! moesim: t.csv:2: both ends are the same; a transfer goes from one place to another
! moesim: t.csv:2: rank 3 cannot reach the memory of host 1; only hosts of its own node, or of its super-node where memory is addressed unified, are in reach
? 2

= twice.csv
id,from_rank,to_rank,bytes
a,0,1,1
b,0,1,1
a,1,0,1
=
$ moesim net twice.csv --cluster hw.json
! moesim: twice.csv:4: id: 'a' is the id of an earlier transfer; every one has its own
? 2

= short.csv
from_rank,to_rank,bytes
0,1
=
$ moesim net short.csv --cluster hw.json
! ~ moesim: short.csv:2: *
? 2

$ moesim net few.csv --cluster hw.json > /dev/full
! moesim: standard output: No space left on device
? 3
