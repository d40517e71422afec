# The reference numerics, as far as they are quick.

$ moesim check --filter operators/rmsnorm
~ 1..*
~ ok 1 - operators/rmsnorm/complete
...
? 0

$ moesim check --filter golden/rounding__bf16 --json
{
  "schema": "moesim.check/1",
  "passed": 1,
  "failed": 0,
...
? 0

$ moesim check --filter pairs/dense --tolerance-report
~ checks * number * failed * part of bound * worst
~ pairs/dense * 1 * 0 *
? 0

$ moesim check --filter qqq
! ~ moesim: *--filter: no check has "qqq" in its name*
? 2

$ moesim check --json --tolerance-report
! ~ moesim: *exclude each other*
? 2

$ moesim check --golden nowhere
! ~ moesim: *nowhere: holds neither ops/ with cases nor train/ with runs*
? 3

$ mkdir -p bad/ops; printf 'not a file of tensors' > bad/ops/rmsnorm__x.safetensors; moesim check --golden bad --filter folder/
1..2
not ok 1 - folder/rmsnorm__x/float64
~ # bad/ops/rmsnorm__x.safetensors: the header is longer than the file*
not ok 2 - folder/rmsnorm__x/float32
~ # bad/ops/rmsnorm__x.safetensors: the header is longer than the file*
! ~ moesim: *2 of 2 checks failed*
? 1

# Attributes and shapes that do not fit one another end the check, not the program.
$ mkdir -p lie/ops; sed 's/"32"/"31"/g; s/"in.x"/"in.y"/' $SRC/models/golden/cases/mla__T1.safetensors > lie/ops/mla__lie.safetensors; moesim check --golden lie --filter folder/mla__lie/float64
1..1
not ok 1 - folder/mla__lie/float64
~ # *
! ~ moesim: *1 of 1 checks failed*
? 1

$ mkdir -p tables/ops; echo '[{"loads": [1, 2], "slots": 3}]' > tables/ops/eplb.json; moesim check --golden tables --filter folder/
1..1
not ok 1 - folder/eplb.json
# eplb.json: groups_in: must be a whole number from 1 to 4096
! ~ moesim: *1 of 1 checks failed*
? 1
