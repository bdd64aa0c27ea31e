#!/bin/sh
# The demo over RDMA: in one guest all of it, in two the worker in the second.
# demo.sh "WORDS OF pp3shm" [options of pp3shm demo]; KEY is a file that both have.
run=$1
shift
key=/run/demo-key
head -c 32 /dev/zero >$key
at=rdma://10.98.0.2:7333
if [ "$PP3_LAB_PAIR" != 1 ]; then
    exec $run demo --link rdma "$@"
elif [ "$PP3_LAB_HOST" = 1 ]; then
    exec $run demo --link rdma --serve $at --key-file $key "$@"
fi
exec $run demo --link rdma --worker $at --key-file $key "$@"
