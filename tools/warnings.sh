#!/bin/sh
# The C core must compile without a warning under every compiler that is here.
set -eu
cd "$(dirname "$0")/.."
flags="-std=c11 -O2 -D_GNU_SOURCE -Ipp3shm -Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only"
# CPython keeps functions in pointers to void, which ISO C has not.
python=$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
for cc in gcc clang aarch64-linux-gnu-gcc; do
    command -v "$cc" >/dev/null 2>&1 || { echo "warnings: no $cc here, not checked"; continue; }
    find pp3shm -name '*.c' ! -name '_core.c' | while read -r file; do
        if grep -q '"rounds/calls.h"' "$file"; then
            "$cc" $flags -isystem "$python" -Wno-pedantic "$file"
        else
            "$cc" $flags "$file"
        fi
    done
    echo "warnings: $cc clean"
done
