#!/bin/sh
# Copies the shared libraries that programs need into a tree, keeping their paths.
#
# usage: libraries.sh ROOT PROGRAM...
root=$1
shift
for program in "$@"; do
    ldd "$program" 2>/dev/null | awk '/=> \// { print $3 } /^\t\/lib64/ { print $1 }'
done | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -Ln "$library" "$root$library" 2>/dev/null || :
done
