#!/bin/sh
# usage: check-includes.sh ROOT
# Checks that the headers which a folder includes lie in folders that it may use. TAP on stdout.
set -eu
cd "$1"

# folder: what its files may include, by path prefix. A folder that is not listed fails.
table='
sim/base: sim/base
sim/des: sim/base sim/des
sim/mem: sim/base sim/mem
hw: sim hw
models: sim/base models
workloads/plan: sim/base models hw workloads/plan
workloads/lower: sim/base models hw workloads/plan workloads/lower
workloads/run: sim models hw workloads
reports/out: sim/base reports/out
reports/cli: sim models hw workloads reports/out reports/cli
reports/api: sim models hw workloads reports/out reports/api
'

sources=$(find sim hw models workloads reports -name '*.[ch]' | LC_ALL=C sort)
unlisted=$(printf '%s\n' "$sources" | while read -r file; do
    printf '%s\n' "$table" | awk -F: -v file="$file" \
        '$1 != "" && index(file, $1 "/") == 1 {found = 1} END {if (!found) print file}'
done)

n=1
echo "1..$(($(printf '%s\n' "$table" | grep -c :) + 1))"
if [ -z "$unlisted" ]; then
    echo "ok 1 - every folder has a rule"
else
    echo "not ok 1 - every folder has a rule"
    printf '%s\n' "$unlisted" | sed 's/^/# no rule for /'
fi
printf '%s\n' "$table" | grep : | while IFS=: read -r folder allowed; do
    n=$((n + 1))
    wrong=$(printf '%s\n' "$sources" | { grep "^$folder/" || true; } | while read -r file; do
        sed -n 's/^#include "\(.*\)".*/\1/p' "$file" | while read -r header; do
            for prefix in $allowed; do
                case $header in "$prefix"/*) continue 2 ;; esac
            done
            echo "# $file includes $header"
        done
    done)
    if [ -z "$wrong" ]; then
        echo "ok $n - $folder"
    else
        echo "not ok $n - $folder may include $allowed only"
        printf '%s\n' "$wrong"
    fi
done
