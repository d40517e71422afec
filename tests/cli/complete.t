# What the shell's completion asks. Names come from the same tables as the commands themselves.

$ moesim complete 'moesim compl' 12
complete
? 0

$ moesim complete 'moesim --v' 10
--version
? 0

$ moesim complete 'moesim complete --' 18
--help
? 0

# The cursor may stand before the end.
$ moesim complete 'moesim compl --json' 12
complete
? 0

# No candidate: the shell offers files.
$ moesim complete 'moesim plan.json ' 17
? 0

$ moesim complete 'moesim zzz' 10
? 0

$ moesim complete '' 0
...
? 0

$ moesim complete x y
! moesim: complete: POINT: 'y' is no position in a line
? 2
