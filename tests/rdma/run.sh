#!/bin/sh
# What `make test-rdma` runs in each guest: PYTHON, then the role by the host's number.
# Plugins that no test here needs are left out: each import costs seconds in emulation.
python=$1
shift
here=$(dirname "$0")
"$python" -P -c 'import pyverbs.qp' || {
    echo "rdma: cannot run here: $("$python" -V) is not the one that pyverbs is built for"
    exit 77
}
if [ "$PP3_LAB_HOST" = 1 ]; then
    exec "$python" -P "$here/host1.py"
fi
exec "$python" -P -m pytest -p no:cacheprovider -p no:benchmark -p no:anyio -p no:hypothesispytest --timeout 300 -rs "$here" "$@"
