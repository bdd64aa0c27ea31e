#!/bin/busybox sh
# A guest's first process. It runs twice: from the initramfs, where there is busybox and
# nothing else, and then from /run/lab in the host's file system under a RAM overlay.
#
# Kernel command line: lab.host=0|1 lab.pair=0|1. The 9p share "job" holds `command` (a
# script), `folder` (shared read-write), `modules` (where the host keeps them), and takes
# `status`; a file `stop` that appears there ends the command.

if [ "$1" != again ]; then
    bb=/bin/busybox
    $bb mount -t devtmpfs none /dev
    $bb mount -t proc none /proc
    $bb mount -t sysfs none /sys
    for module in /modules/*; do $bb insmod "$module"; done
    share=trans=virtio,version=9p2000.L,msize=512000
    $bb mount -t 9p -o ro,cache=loose,$share host /host
    $bb mount -t tmpfs none /changes
    $bb mkdir /changes/upper /changes/work
    $bb mount -t overlay -o lowerdir=/host,upperdir=/changes/upper,workdir=/changes/work none /root
    for kept in dev proc sys; do
        $bb mkdir -p /root/$kept
        $bb mount --move /$kept /root/$kept
    done
    $bb mount -t tmpfs -o mode=755 none /root/run
    $bb mkdir -p /root/run/lab/job
    $bb mount -t 9p -o cache=none,$share job /root/run/lab/job
    $bb cp /init /root/run/lab/init
    # Not busybox again: its shell prefers its own, smaller "ip" to iproute2.
    exec $bb switch_root /root /bin/sh /run/lab/init again
fi

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
job=/run/lab/job
say=/dev/vport0p1
[ -e $say ] || say=$(ls /dev/vport*p1 | head -1)

leave() {
    echo "$1" >$job/status
    sync
    busybox poweroff -f
}
give_up() {
    echo "rdma-lab: guest: $*" >$say
    leave 125
}
value() { sed -n "s/.*lab\.$1=\([0-9]*\).*/\1/p" /proc/cmdline; }

host=$(value host)
pair=$(value pair)
me=10.98.0.$((host + 1))
other=10.98.0.$((2 - host))

mkdir -p /dev/shm /dev/pts
busybox mount -t tmpfs -o mode=1777 none /dev/shm
busybox mount -t devpts none /dev/pts
ln -sfn /proc/self/fd /dev/fd
folder=$(cat $job/folder)
mkdir -p "$folder"
busybox mount -t 9p -o cache=mmap,trans=virtio,version=9p2000.L,msize=512000 folder "$folder" ||
    give_up "cannot mount $folder"
release=$(uname -r)
mkdir -p /lib/modules
ln -sfn "$(cat $job/modules)/$release" "/lib/modules/$release"
ulimit -l unlimited
busybox hostname "lab$host"
ip link set lo up
modprobe -a rdma_rxe ib_uverbs || give_up "kernel $release has no soft-RoCE"

# Where one address is asked for from the other's device, both are this host's own.
lenient() {
    for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
        echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/$1/${setting%=*}"
    done
}
if [ "$pair" = 1 ]; then
    modprobe virtio_net
    for _ in $(seq 100); do
        card=$(ls /sys/class/net | grep -v '^lo$' | head -1)
        [ -n "$card" ] && break
        sleep 0.1
    done
    ip link set "$card" name lab0
    ip link set lab0 up
    ip addr add $me/24 dev lab0
    rdma link add rxe0 type rxe netdev lab0 || give_up "no rxe0"
    reached=
    for _ in $(seq 400); do
        busybox ping -c 1 -W 1 $other >/dev/null 2>&1 && reached=1 && break
        sleep 0.2
    done
    [ -n "$reached" ] || give_up "the other guest does not answer"
else
    ip link add lab0 type veth peer name lab1
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    for n in 0 1; do
        lenient lab$n
        ip link set lab$n mtu 4200 up
        ip addr add 10.98.0.$((n + 1))/24 dev lab$n
    done
    for n in 0 1; do
        rdma link add rxe$n type rxe netdev lab$n 2>$say || give_up "no rxe$n"
    done
fi

# Debian's pyverbs for any interpreter of its minor version, a virtual environment's too.
mkdir -p /run/lab/python
ln -s /usr/lib/python3/dist-packages/pyverbs /run/lab/python/pyverbs

export PP3_LAB=1 PP3_LAB_HOST="$host" PP3_LAB_PAIR="$pair" PP3_LAB_IP="$me" PP3_LAB_PEER="$other"
setsid bash $job/command >$say 2>&1 </dev/null &
command=$!
while kill -0 $command 2>/dev/null; do
    if [ -e $job/stop ]; then
        kill -TERM -$command 2>/dev/null
        for _ in $(seq 50); do
            kill -0 $command 2>/dev/null || break
            sleep 0.2
        done
        kill -KILL -$command 2>/dev/null
    fi
    sleep 0.2
done
wait $command
leave $?
