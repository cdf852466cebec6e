# shellcheck shell=bash
# What the tests of the packages share; they source it at the top of the source tree.

umask 022
work=$(mktemp -d "${TMPDIR:-/tmp}/ibsm-packages.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

fail() { echo "FAILED: $*" >&2; exit 1; }

# expect WANTED GOT: both are texts.
expect() { [[ $1 == "$2" ]] || fail "want '$1', got '$2'"; }

# files_of NAME: the files of a package as they are staged, sorted.
files_of() { find "target/package/$1" -type f -printf '/%P\n' | sort; }
