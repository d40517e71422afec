#!/bin/sh
# usage: check-sizes.sh ROOT
# Checks that files have at most 600 lines and functions at most 60. TAP on stdout.
set -eu
cd "$1"

find sim hw models workloads reports tests -name '*.[ch]' | LC_ALL=C sort | xargs awk '
FNR == 1 {
    start = 0
}
FNR == 601 {
    long_files = long_files "# " FILENAME "\n"
}
/^\{/ {
    start = FNR
}
/^\}/ {
    if (start > 0 && FNR - start - 1 > 60)
        long_functions = long_functions "# " FILENAME ":" start ": " FNR - start - 1 " lines\n"
    start = 0
}
END {
    print "1..2"
    printf "%sok 1 - files of at most 600 lines\n%s", long_files == "" ? "" : "not ", long_files
    printf "%sok 2 - functions of at most 60 lines\n%s", long_functions == "" ? "" : "not ", long_functions
}'
