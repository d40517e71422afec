# Validation: signed errors, bounds, and tables that cannot be used.

= cases.csv
id,model.config,model.overrides.num_hidden_layers,cluster.preset,cluster.nodes,cluster.gpus_per_node,workload.seq_len,measured.step_time_s,measured.peak_memory_bytes
two,llama-3.1-8b,2,h200-sxm,1,1,1024,1e-9,1
four,llama-3.1-8b,4,h200-sxm,1,1,1024,1000,1e15
=
$ moesim validate cases.csv
Signed errors, predicted against measured

~ *step_time * peak  id
~ * % * %
~ * two
~ * -* four

Over 2 of 2 rows

...
~ step_time_s * two
~ peak_memory_bytes * two
? 0

$ moesim validate cases.csv --max-time-error 5 > /dev/null
! ~ moesim: cases.csv: step_time_s: mean absolute error * % is over 5 %
? 1

$ moesim validate cases.csv --max-time-error 1e99 --max-memory-error 1e99 > /dev/null
? 0

$ moesim validate cases.csv --max-time-error nan
! moesim: --max-time-error: expected a number of percent, 0 or more
? 2

$ moesim validate cases.csv --max-time-error -1
! moesim: --max-time-error: expected a number of percent, 0 or more
? 2

$ moesim validate cases.csv --max-time-error much
! ~ moesim: validate: *much* see `moesim validate --help`
? 2

$ moesim validate cases.csv --csv out.csv > /dev/null; head -1 out.csv; wc -l < out.csv
"id","measured.step_time_s","predicted.step_time_s","error_percent.step_time_s","measured.peak_memory_bytes","predicted.peak_memory_bytes","error_percent.peak_memory_bytes","status","reason"
3
? 0

$ moesim validate cases.csv --csv /dev/full > /dev/null
! ~ moesim: /dev/full: *No space left on device*
? 3

$ moesim validate cases.csv > /dev/full
! moesim: standard output: No space left on device
? 3

# A row that cannot be predicted is reported with its line; with a bound it fails the validation.
= partly.csv
id,model.config,cluster.preset,parallel.tp,workload.seq_len,measured.step_time_s
good,llama-3.1-8b,h200-sxm,,1024,1
bad,llama-3.1-8b,h200-sxm,2,1024,1
=
$ moesim validate partly.csv
! ~ moesim: partly.csv:3: parallel.tp: *
...
~ * good
~ * -  bad
...
Over 1 of 2 rows
...
? 0

$ moesim validate partly.csv --max-time-error 1e99 > /dev/null
! ~ moesim: partly.csv:3: parallel.tp: *
! moesim: partly.csv: 1 rows could not be predicted
? 1

# Nothing compared is no success.
$ printf 'id,model.config,cluster.preset,parallel.tp\na,llama-3.1-8b,h200-sxm,2\n' > none.csv; moesim validate none.csv > /dev/null
! ~ moesim: none.csv:2: parallel.tp: *
! moesim: none.csv: no row could be predicted
? 2

$ printf 'id,measured.step_time_s\n' > header.csv; moesim validate header.csv
! moesim: header.csv: no rows below the header
? 2

$ : > empty.csv; moesim validate empty.csv
! ~ moesim: empty.csv*
? 2

$ moesim validate nowhere.csv
! moesim: nowhere.csv: cannot read: No such file or directory
? 3

$ moesim validate .
! moesim: .: cannot read: Is a directory
? 3

$ printf 'id,model,cluster.preset,paralel.ep\na,llama-3.1-8b,h200-sxm,2\n' > typo.csv; moesim validate typo.csv > /dev/null
! ~ moesim: typo.csv:2: *paralel: *"parallel"*
! moesim: typo.csv: no row could be predicted
? 2

$ printf 'id,model.config,cluster.preset,workload.seq_len\na,llama-3.1-8b,h200-sxm,1e999\n' > huge.csv; moesim validate huge.csv > /dev/null
! ~ moesim: huge.csv:2: workload.seq_len: '1e999' is no JSON value*
! moesim: huge.csv: no row could be predicted
? 2

$ printf 'id,measured.step_time\na,1\n' > path.csv; moesim validate path.csv
! ~ moesim: path.csv:1: measured.step_time: no result has that path; did you mean measured.*
? 2

$ printf 'id,id\na,1\n' > twice.csv; moesim validate twice.csv
! ~ moesim: twice.csv:1: *
? 2

$ printf 'id,parallel.ep\na\n' > short.csv; moesim validate short.csv
! ~ moesim: short.csv:2: *
? 2

$ printf 'id,model.config,cluster.preset,workload.seq_len,measured.step_time_s,measured.rank\na,llama-3.1-8b,h200-sxm,1024,1,8\n' > rank.csv; moesim validate rank.csv > /dev/null
! ~ moesim: rank.csv:2: measured.rank: 8 of a cluster of 8 ranks
! moesim: rank.csv: no row could be predicted
? 2
