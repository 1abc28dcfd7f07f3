#!/busybox sh
# First process of the virtual machine of scripts/vm.sh: mounts the host's files read-only below an overlay in memory,
# loads modules, runs the command, and reports its exit code.

b=/busybox
$b mkdir -p /proc /sys /dev /host /layer /new
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
. /settings
while read -r module; do $b insmod "/modules/$module" || echo "no $module"; done </modules/order

nine=trans=virtio,version=9p2000.L,msize=262144
$b mount -t 9p -o $nine,ro,cache=loose host /host || echo "no host"
$b mount -t tmpfs -o mode=755 layer /layer
$b mkdir /layer/changes /layer/work
$b mount -t overlay -o lowerdir=/host,upperdir=/layer/changes,workdir=/layer/work overlay /new || echo "no overlay"
$b mkdir -p /new/proc /new/sys /new/dev /new/run /new/lib/modules "/new$out"
$b mount -t 9p -o $nine,cache=none out "/new$out" || echo "no out"
$b mount --bind "/host$store/root/lib/modules" /new/lib/modules
for kept in proc sys dev; do $b mount --bind /$kept /new/$kept; done
$b mount -t tmpfs -o mode=755 run /new/run
$b mkdir -p /new/run/vm /new/dev/pts /new/dev/shm
$b mount -t devpts pts /new/dev/pts
$b mount -t tmpfs shm /new/dev/shm
$b cp $b /new/run/vm/modprobe
$b cp /command /new/run/vm/command

# The kernel starts this program to load modules. It runs in the initial root.
$b mkdir /lib
$b ln -s "/host$store/root/lib/modules" /lib/modules
$b ln /busybox /modprobe
echo /modprobe >/proc/sys/kernel/modprobe
for module in $modules; do /modprobe "$module" || echo "no module $module"; done
$b ip link set lo up
$b hostname vm

port() {
    for at in /sys/class/virtio-ports/*; do
        [ "$($b cat "$at/name")" = "$1" ] && echo "/dev/${at##*/}"
    done
}
stdout=$(port stdout) stderr=$(port stderr) status=$(port status)
# Pipes, because a command may open its /dev/stdout again, and a port can be opened only once.
$b mkfifo /layer/stdout /layer/stderr
$b cat </layer/stdout >"$stdout" & copy1=$!
$b cat </layer/stderr >"$stderr" & copy2=$!
# The mount namespace needs this root as well: the kernel refuses user namespaces in a plain chroot.
cd /new
$b mount --move /new /
$b chroot . /bin/bash /run/vm/command </dev/null >/layer/stdout 2>/layer/stderr
code=$?
wait $copy1 $copy2
echo $code >"$status"
$b poweroff -f
