# Sweeps: rows in their order, whatever the threads, shards and interruptions; what is wrong is said at its place.

= plan.json
{"model": "kimi-k3-mini", "cluster": {"preset": "h200-sxm", "nodes": 1, "gpus_per_node": 8}, "workload": {"seq_len": 1024}}
=
= sweep.json
{"base": "plan.json",
 "grid": {"parallel.ep": [1, 2, 4, 8, 3], "loss.seq_chunk": [0, {"from": 256, "to": 512, "factor": 2}], "memory.recompute": ["none", "full"]},
 "constraints": ["parallel.ep * 2 <= ranks or parallel.ep == 8"], "top": 2}
=

$ moesim sweep sweep.json -o out.csv
Sweep       sweep.json: 30 combinations, 30 rows: 24 fit, 0 do not fit, 6 are invalid
Objective   tokens_per_s_per_gpu, higher is better

~ Best        parallel.ep *, loss.seq_chunk *, memory.recompute none
...
What each knob buys: the best row with that knob alone turned, as changes
...
The best 2
~   row  ep  seq_chunk  recompute  tokens_per_s_per_gpu *
...
Front: no other row is better in all of tokens_per_s_per_gpu (higher), peak_memory_bytes (lower)
...
? 0

$ head -3 out.csv | cut -d, -f 1-5; wc -l < out.csv; ls
"parallel.ep","loss.seq_chunk","memory.recompute","ranks","step_time_s"
~ 1,0,"none",8,0.*
~ 1,0,"full",8,0.*
31
out.csv
plan.json
sweep.json
? 0

# A row is what run prints.
$ sed 's/"workload"/"loss": {"seq_chunk": 256}, "memory": {"recompute": "full"}, "parallel": {"ep": 2}, "workload"/' plan.json > one.json; moesim one.json --json | grep -o '"step_time_s": [0-9.]*' | sed 's/.* //' > want; grep '^2,256,"full"' out.csv | cut -d, -f 5 > got; cmp want got
? 0

# Rows of the largest model, which share layouts, moments of memory and of the machine with their neighbours, are what run prints alone.
= k3.json
{"model": "kimi-k3", "cluster": {"preset": "h200-sxm", "nodes": 16, "gpus_per_node": 8}, "parallel": {"ep": 32},
 "workload": {"mode": "lora", "seq_len": 8192, "global_batch": 128}, "precision": {"parameters": "bf16"}}
=
= k3-sweep.json
{"base": "k3.json",
 "grid": {"memory.recompute": ["none", "full", "selective"], "loss.seq_chunk": [512, 4096, 6000], "loss.vocab_chunk": [8192, 98304, 131072]}}
=

$ moesim sweep k3-sweep.json -o k3.csv > /dev/null; for r in none full selective; do for c in 512,98304 6000,98304 6000,131072; do sed 's/"workload"/"loss": {"seq_chunk": '${c%,*}', "vocab_chunk": '${c#*,}'}, "memory": {"recompute": "'$r'"}, "workload"/' k3.json > one.json; moesim one.json --json > one.out; for f in step_time_s peak_memory_bytes reserved_memory_bytes; do echo "$r $c $(grep -o "^ *\"$f\": [0-9.]*" one.out | sed 's/.* //')"; done; done; done > want; awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) { gsub(/"/, "", $i); at[$i] = i } } { r = $1; gsub(/"/, "", r); c = $2 "," $3 } c == "512,98304" || c == "6000,98304" || c == "6000,131072" { print r, c, $at["step_time_s"]; print r, c, $at["peak_memory_bytes"]; print r, c, $at["reserved_memory_bytes"] }' k3.csv > got; cmp want got; wc -l < got
27
? 0

# Invalid rows say which rule failed and what is legal.
$ grep -c '"invalid","parallel.ep: 3 does not divide dp_shard x cp x tp = 8; the nearest legal ep is 2"' out.csv
6
? 0

# The same bytes on any number of threads, on standard output, and as shards.
$ for j in 1 2 5; do moesim sweep sweep.json -o j.csv -j$j > /dev/null && cmp j.csv out.csv; done; moesim sweep sweep.json | cmp - out.csv
? 0

$ for k in 1 2 3; do moesim sweep sweep.json -o shard$k.csv --shard $k/3 > /dev/null; done; moesim sweep sweep.json --merge shard3.csv shard1.csv shard2.csv -o merged.csv > report; cmp merged.csv out.csv; head -1 report
Sweep       sweep.json: 30 combinations, 30 rows: 24 fit, 0 do not fit, 6 are invalid
? 0

$ moesim sweep sweep.json --merge shard3.csv shard1.csv -o merged.csv
! ~ moesim: sweep.json: the row of *, which belongs to shard */2, is not in *
? 2

# The rows of the files themselves say of how many shards they are.
$ echo '{"base": "plan.json", "grid": {"loss.seq_chunk": {"from": 1, "to": 80, "step": 1}}}' > many.json; for k in 1 2 3 4; do moesim sweep many.json -o many$k.csv --shard $k/4 > /dev/null; done; moesim sweep many.json --merge many4.csv many1.csv many2.csv
! moesim: many.json: shard 3/4 is missing; name its file, too
? 2

$ moesim sweep many.json --merge many2.csv
! moesim: many.json: shards 1/4, 3/4, 4/4 are missing; name their files, too
? 2

# One that is cut short, in a row or between rows, is no shard of a larger number.
$ for k in 1 2 3; do moesim sweep many.json -o three$k.csv --shard $k/3 > /dev/null; done; head -c -20 three2.csv > cut2.csv; moesim sweep many.json --merge three1.csv cut2.csv three3.csv
! ~ moesim: many.json: the row of *, which belongs to shard 2/3, is not in cut2.csv: it is cut short, or of another sweep
? 2

$ head -20 three2.csv > cut2.csv; moesim sweep many.json --merge three1.csv cut2.csv three3.csv
! ~ moesim: many.json: the row of *, which belongs to shard 2/3, is not in cut2.csv: it is cut short, or of another sweep
? 2

$ moesim sweep sweep.json --merge shard1.csv ./shard1.csv shard3.csv -o merged.csv
! moesim: --merge: shard1.csv and ./shard1.csv are the same file; name each shard once
? 2

$ sed 's/"top"/"objective": "fits", "top"/' sweep.json > x.json; moesim sweep x.json
! ~ moesim: x.json:*:*: objective: "fits" of a result is no number, *such as step_time_s
? 2

# What a sweep names of results is checked before the first row, at its place.
= names.sh
printf '{"base": {"model": "olmoe-1b-7b", "cluster": {"preset": "h200-sxm", "nodes": 1}},\n "grid": {"parallel.ep": [1]},\n %s}\n' "$1" > n.json
moesim sweep n.json
=
$ sh names.sh '"objective": "step_time"'
! moesim: n.json:3:15: objective: results have no number "step_time"; did you mean "step_time_s"?
? 2

$ sh names.sh '"objective": {"maximize": "nothing_like_it"}'
! moesim: n.json:3:15: objective: results have no number "nothing_like_it"
? 2

$ sh names.sh '"pareto": ["step_time_s", "mfuu"]'
! moesim: n.json:3:28: pareto[1]: results have no number "mfuu"; did you mean "mfu"?
? 2

$ sh names.sh '"columns": ["time.by_operator.RMSNorm", "mfu"]'
! moesim: n.json:3:42: columns[1]: "mfu" is a column already; leave it out
? 2

$ sh names.sh "\"constraints\": [\"$(head -c 8000 /dev/zero | tr '\0' '(')\"]" 2>&1 | wc -c | grep -c '^[12]...$'
1
? 0

$ sh names.sh '"columns": ["time.by_operator.LayerNormm"]'
! ~ moesim: n.json:3:14: columns[0]: results have no number "time.by_operator.LayerNormm"*
? 2

$ moesim sweep sweep.json --merge shard1.csv shard2.csv shard3.csv -o shard1.csv
! moesim: shard1.csv: is both read and written; write to another file
? 2

$ moesim sweep sweep.json --shard 4/3
! moesim: --shard: '4/3' is no shard; expected K/N with K from 1 to N, as in 3/8
? 2

# Cut anywhere, it goes on to the same file.
$ cp out.csv full.csv; (ulimit -f 8; trap '' XFSZ; moesim sweep sweep.json -o cut.csv) 2> /dev/null; cp cut.csv.resume note; size=$(stat -c %s full.csv); for at in 0 1 100 1500 1700 4000 5000 $((size - 1)) $size; do head -c $at full.csv > cut.csv; cp note cut.csv.resume; moesim sweep sweep.json -o cut.csv --resume > report2 || echo $at failed; cmp cut.csv full.csv; cmp report report2; done; ls cut.csv*
cut.csv
? 0

# A complete file needs nothing; one of other rows is refused.
$ moesim sweep sweep.json -o cut.csv --resume | cmp - report; cmp cut.csv full.csv
? 0

$ sed 's/^2,256,"full",8,0/2,256,"none",8,0/' full.csv > cut.csv; cp note cut.csv.resume; moesim sweep sweep.json -o cut.csv --resume
! moesim: cut.csv: row 10 is not that of this sweep's next point; start over without --resume, or write to another file
? 2

$ head -5 full.csv | sed '5s/,8,0[.]/,8,1./' > cut.csv; cp note cut.csv.resume; moesim sweep sweep.json -o cut.csv --resume
! moesim: cut.csv: its last row is not what this sweep gives for that point now; start over without --resume, or write to another file
? 2

$ head -5 full.csv | sed '1s/ranks/rank/' > cut.csv; moesim sweep sweep.json -o cut.csv --resume
! moesim: cut.csv: its columns are not those of this sweep; start over without --resume, or write to another file
? 2

# A search finds the rows that a sweep ranks first, and says what is proven.
$ moesim sweep sweep.json --search -o best.csv > report; head -1 report; grep -c '^Proven ' report; moesim sweep sweep.json -o out.csv > all; sed -n '/^Best /,/^$/p' report > a; sed -n '/^Best /,/^$/p' all | cmp - a; wc -l < best.csv; grep -n "$(sed -n 2p best.csv)" out.csv | wc -l
~ Search      sweep.json: 30 combinations in 10 layouts; 2 are invalid, *
1
3
1
? 0

$ for j in 1 3; do moesim sweep sweep.json --search -j$j | cmp - best.csv; done
? 0

$ sed 's/"top"/"objective": "hfu", "top"/' sweep.json > x.json; moesim sweep x.json --search
! ~ moesim: x.json:*:*: objective: maximize "hfu" has no bound, so a search could prove nothing; use one of step_time_s, *
? 2

$ moesim sweep sweep.json --search --resume -o best.csv
! moesim: --search is one run; it takes none of --merge, --resume, --shard
? 2

# JSON lines: the same, and the same way.
$ moesim sweep sweep.json -o out.jsonl > report.jsonl; moesim sweep sweep.json -o out.csv > report.csv; cmp report.jsonl report.csv; head -1 out.jsonl | cut -c 1-75; wc -l < out.jsonl
{"parallel.ep": 1, "loss.seq_chunk": 0, "memory.recompute": "none", "ranks"
30
? 0

# A full disk: what is there stays, and says so.
$ moesim sweep sweep.json -o /dev/full
! moesim: /dev/full: cannot write: No space left on device
? 3

$ moesim sweep sweep.json > /dev/full
! moesim: standard output: cannot write: No space left on device
? 3

$ moesim sweep sweep.json -o nowhere/out.csv
! moesim: nowhere/out.csv: cannot write: No such file or directory
? 3

$ (ulimit -f 16; trap '' XFSZ; moesim sweep sweep.json -o small.csv; echo $?) 2> error; sed 's/after [0-9]* of/after N of/' error; head -c $(stat -c %s small.csv) full.csv | cmp - small.csv; tail -c 1 small.csv | od -c | head -1; moesim sweep sweep.json -o small.csv --resume > /dev/null; cmp small.csv full.csv; ls small.csv*
3
moesim: after N of 30 points (--resume goes on from there): small.csv: cannot write: File too large
0000000  \n
small.csv
? 0

# A changed sweep is another sweep.
$ (ulimit -f 16; trap '' XFSZ; moesim sweep sweep.json -o small.csv) 2> /dev/null; sed 's/"full"/"selective"/' sweep.json > other.json; moesim sweep other.json -o small.csv --resume
! moesim: small.csv: is the beginning of another sweep: the sweep file, a file that it names, the shard, the format or the version of moesim has changed; start over without --resume, or write to another file
? 2

$ sed -i 's/1024/2048/' plan.json; moesim sweep sweep.json -o small.csv --resume; sed -i 's/2048/1024/' plan.json
! ~ moesim: small.csv: is the beginning of another sweep: *
? 0

$ rm small.csv.resume; moesim sweep sweep.json -o small.csv --resume
! ~ moesim: small.csv: cannot be gone on with: small.csv.resume, which says of what sweep it is, is missing; *
? 2

$ moesim sweep sweep.json --resume
! moesim: --resume: needs --output with a regular file to go on from
? 2

# Interrupted: finished rows are kept.
= long.json
{"base": {"model": "kimi-k3", "cluster": {"preset": "h200-sxm", "nodes": 64, "gpus_per_node": 8}},
 "grid": {"workload.global_batch": {"from": 512, "to": 512000, "step": 512}, "workload.seq_len": {"from": 1024, "to": 9000, "step": 1}}}
=
$ env --default-signal=INT moesim sweep long.json -o long.csv & while test $(cat long.csv 2>/dev/null | wc -l) -lt 3; do sleep 0.05; done; kill -INT $!; wait $!
! moesim: interrupted; the rows so far are kept, --resume goes on from there
? 130

$ test $(wc -l < long.csv) -gt 1; tail -c 1 long.csv | od -c | head -1; ls long.csv*
0000000  \n
long.csv
long.csv.resume
? 0

# What cannot be swept.
$ echo '{"base": "plan.json", "grid": {"paralel.ep": [1]}}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: grid.paralel.ep: paralel.ep: plans have no field "paralel"; did you mean "parallel"?
? 2

$ echo '{"base": "plan.json", "grid": {"parallel.ep": []}}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: grid.parallel.ep: expected a list of values, or a range *
? 2

$ echo '{"base": "plan.json", "grid": {"parallel.ep": [1, 1]}}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: grid.parallel.ep: 1 stands there twice
? 2

$ echo '{"base": "plan.json", "grid": {"parallel.ep": [1]}, "constraints": ["parallel.ep < rank"]}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: constraints: "parallel.ep < rank": rank: plans have no field "rank"; did you mean "ranks"?
? 2

$ echo '{"base": "plan.json", "grid": {"parallel.ep": [1]}, "constraints": ["parallel.ep <"]}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: constraints: "parallel.ep <": column 14: expected a value, not the end
? 2

$ echo '{"base": "plan.json", "grid": {"parallel.ep": [1]}, "objective": "tokens_per_sec"}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:66: objective: results have no number "tokens_per_sec"; did you mean *
? 2

$ echo '{"base": "plan.json", "linked": [{"parallel.ep": [1, 2], "workload.seq_len": [1]}]}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: linked[0].workload.seq_len: has 1 values where parallel.ep has 2; *
? 2

$ echo '{"base": "plan.json", "presets": "layuot"}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: presets: "layuot" is none of *; did you mean "layout"?
? 2

$ echo '{"base": "plan.json", "presets": ["loss-chunks", "loss-chunks"]}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: presets: "loss-chunks" does not suit this sweep: *is swept twice; keep one of them
? 2

$ echo '{"base": "plan.json", "grids": {"parallel.ep": [1, 2]}}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: grids: unknown; did you mean "grid"?
? 2

$ moesim sweep x.json -o ""
! moesim: sweep: --output: the name is empty; give FILE, or leave the option out
? 2

$ echo '{"base": "plan.json"}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:1: sweeps over nothing; give grid, linked, list or presets
? 2

$ echo '{"base": "plan.json", "grid": {"parallel.ep": [1]}, "gird": 1}' > x.json; moesim sweep x.json
! ~ moesim: x.json:1:*: gird: unknown*
? 2

$ echo '{"base": "plan.json", "grid": {"parallel.ep": [3, 5]}}' > x.json; moesim sweep x.json -o x.csv; wc -l < x.csv
! ~ moesim: x.json: no row is valid; the first: parallel.ep: 3 *
3
? 0

$ moesim sweep x.json > rows.csv
! ~ moesim: x.json: no row is valid; *
? 2

$ echo '{"base": "plan.json", "grid": {"parallel.ep": [1]}, "constraints": ["ranks > 8"]}' > x.json; moesim sweep x.json -o x.csv
! moesim: x.json: the constraints leave out all 1 combinations
? 2

$ moesim sweep sweep.json --format xls
! moesim: --format: 'xls' is none of csv, jsonl
? 2

$ moesim sweep nowhere.json
! moesim: nowhere.json: cannot read: No such file or directory
? 3
