#!/bin/sh
# usage: check-includes.sh ROOT
# Checks that the headers which a folder's files include lie in folders that it may use. TAP on stdout.
set -eu
cd "$1"

# folder: what its files may include, by folder. A subfolder that is not listed has its parent's rule.
table='
sim/base: sim/base
sim/des: sim/base sim/des
sim/mem: sim/base sim/mem
hw: sim hw
models: sim/base models
workloads: sim models hw workloads
workloads/plan: sim/base models hw workloads/plan
workloads/lower: sim/base models hw workloads/plan workloads/lower
workloads/run: sim models hw workloads
workloads/sweep: sim models hw workloads
reports/out: sim/base reports/out
reports/cli: sim models hw workloads reports/out reports/cli
reports/api: sim models hw workloads reports/out reports/api
'

# One line per rule: "ok", or "not ok" and the offending lines. Headers without a folder are generated.
find sim hw models workloads reports -name '*.[ch]' | LC_ALL=C sort | xargs grep -H '^#include "' | awk -v table="$table" '
function rule_of(file) {
    while (sub("/[^/]*$", "", file))
        if (file in allowed)
            return file
    return ""
}
function may(folder, header,    i, n, parts) {
    n = split(allowed[folder], parts, " ")
    for (i = 1; i <= n; i++)
        if (index(header, parts[i] "/") == 1)
            return 1
    return index(header, "/") == 0
}
BEGIN {
    n_lines = split(table, lines, "\n")
    for (i = 1; i <= n_lines; i++)
        if (split(lines[i], pair, ": *") == 2) {
            folders[++n_folders] = pair[1]
            allowed[pair[1]] = pair[2]
        }
}
{
    file = $0
    sub(":.*", "", file)
    split($0, quoted, "\"")
    folder = rule_of(file)
    if (folder == "")
        unlisted = unlisted "# no rule for " file "\n"
    else if (!may(folder, quoted[2]))
        wrong[folder] = wrong[folder] "# " file " includes " quoted[2] "\n"
}
END {
    print "1.." n_folders + 1
    printf "%sok 1 - every folder has a rule\n%s", unlisted == "" ? "" : "not ", unlisted
    for (i = 1; i <= n_folders; i++) {
        folder = folders[i]
        printf "%sok %d - %s includes %s only\n%s", folder in wrong ? "not " : "", i + 1, folder, allowed[folder],
            wrong[folder]
    }
}'
