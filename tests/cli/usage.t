# The program's own words and options, and exit statuses of bad usage.

$ moesim --version
~ moesim *.*.*
? 0

$ moesim --help
Usage:
  moesim PLAN.json              predict one training step (same as moesim run PLAN.json)
  moesim COMMAND [OPTION...]    see moesim COMMAND --help
...
Exit status: 0 done, 1 a check or bound failed, 2 bad usage or input,
3 input/output failure, 130 interrupted.
? 0

$ moesim -h | head -1
Usage:
? 0

# Nothing on stdout when there is nothing to say.
$ moesim
! moesim: nothing to do
! ...
? 2

$ moesim --bogus
! moesim: Unknown option --bogus; see `moesim --help`
? 2

$ moesim complet
! moesim: 'complet' is no command and no file; did you mean 'complete'?
? 2

$ moesim frobnicate
! moesim: 'frobnicate' is no command and no file; see `moesim --help`
? 2

$ moesim ''
! moesim: '' is no command and no file; see `moesim --help`
? 2

$ moesim complete --help
Usage:
  moesim complete [OPTION…] LINE POINT

...
? 0

$ moesim complete --bogus
! moesim: complete: Unknown option --bogus; see `moesim complete --help`
? 2

$ moesim complete
! moesim: complete: expected LINE POINT; see `moesim complete --help`
? 2

$ moesim complete a 1 b
! moesim: complete: 'b' is one word too many; see `moesim complete --help`
? 2

# A result that could not be written is a failure.
$ moesim --help > /dev/full
! moesim: standard output: No space left on device
? 3

$ moesim --help >&-
! moesim: standard output: Bad file descriptor
? 3

# Every command has help that begins alike, and names itself.
$ for c in $(moesim complete 'moesim ' 7); do moesim $c --help | sed -n 2p | grep -q "^  moesim $c " || echo "$c"; done
? 0

# Interrupted, while it waits for its input.
$ mkfifo never; timeout --preserve-status -s INT 0.3 moesim run never
! moesim: interrupted
? 130
