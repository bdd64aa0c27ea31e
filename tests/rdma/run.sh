#!/bin/sh
# What `make test-rdma` runs in each guest: PYTHON, then the role by the host's number.
python=$1
shift
here=$(dirname "$0")
if [ "$PP3_LAB_HOST" = 1 ]; then
    exec "$python" -P "$here/host1.py"
fi
[ $# -gt 0 ] || set -- "$here"
exec "$python" -P -m pytest -p no:cacheprovider --timeout 300 -rs "$@"
