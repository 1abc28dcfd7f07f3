#!/usr/bin/env bash
# Runs a command in a small virtual machine with Debian's kernel, for what the kernel here lacks:
#
#     scripts/vm.sh [OPTION…] COMMAND [ARGUMENT…]
#
#     --counted       its clock counts instructions, one per nanosecond: what else the host does
#                     changes no time seen inside (one processor, emulated)
#     --cpus N        processors (2)
#     --memory SIZE   memory (2G)
#     --modules LIST  kernel modules to load before, beside those loaded on demand
#                     (sch_netem mpls_router mpls_iptunnel tun)
#     --out DIR       folder whose changes stay (target/vm/out)
#
# The command sees this host's files, runs as root in the present folder, and may change any
# of them: what it writes below --out is kept, all else is forgotten with the machine. It has no
# network but what it makes. Its exit code is returned; 125 where the machine itself failed.
# Passed on are PATH, HOME, LANG and variables named NETSTAGE_…, RUST_… or CARGO_….
#
# Needs Debian's package qemu-system-x86. The kernel and busybox are fetched by apt into
# target/vm and never installed. Where the processor has no virtualisation to offer, QEMU
# emulates one, some ten to thirty times slower.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
store=$top/target/vm
counted= cpus=2 memory=2G out=$store/out
modules="sch_netem mpls_router mpls_iptunnel tun"

fail() {
    echo "vm: $*" >&2
    exit 125
}

while [ $# -gt 0 ]; do
    case $1 in
        --counted) counted=yes ;;
        --cpus) cpus=$2; shift ;;
        --memory) memory=$2; shift ;;
        --modules) modules=$2; shift ;;
        --out) out=$2; shift ;;
        --) shift; break ;;
        -*) fail "unknown option $1 (the options stand at the top of $0)" ;;
        *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || fail "usage: scripts/vm.sh [OPTION…] COMMAND [ARGUMENT…]"
command -v qemu-system-x86_64 >/dev/null || fail "needs QEMU: apt-get install qemu-system-x86 (Debian)"
mkdir -p "$store" "$out"
out=$(cd "$out" && pwd)

# The kernel and busybox, unpacked.
fetch() {
    command -v apt-get >/dev/null || fail "needs apt and Debian's archive for the kernel"
    local kernel log=$store/fetch.log
    kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -1)
    [ -n "$kernel" ] || fail "apt knows no linux-image-amd64: run apt-get update"
    echo "vm: fetching $kernel and busybox-static by apt into target/vm" >&2
    rm -rf "$store/fetch" "$store/root" && mkdir "$store/fetch"
    (cd "$store/fetch" && apt-get download "$kernel" busybox-static) >"$log" 2>&1 ||
        { tail -5 "$log" >&2; fail "apt-get download failed; run apt-get update?"; }
    for package in "$store"/fetch/*.deb; do dpkg -x "$package" "$store/root"; done
    "$store/root/bin/busybox" depmod -b "$store/root" "$(ls "$store/root/lib/modules")"
    # What the machine needs before it sees any file of ours, each after those it needs.
    local tree
    tree=$store/root/lib/modules/$(ls "$store/root/lib/modules")
    mkdir -p "$store/initial/modules"
    cp "$store/root/bin/busybox" "$store/initial/"
    : >"$store/initial/modules/order"
    for module in virtio_pci virtio_console virtio_rng 9pnet_virtio 9p overlay; do add_module "$tree" "$module"; done
    rm -rf "$store/fetch"
    touch "$store/fetched"
}

# Copies a module and what it depends on; `modules.dep` lists the nearest first.
add_module() {
    local line path
    line=$(grep -E "(^|/)${2//[-_]/[-_]}\.ko:" "$1/modules.dep") || fail "the kernel has no module $2"
    for path in $(echo "${line/:/ }" | tr ' ' '\n' | tac); do
        cp "$1/$path" "$store/initial/modules/"
        grep -qx "${path##*/}" "$store/initial/modules/order" || echo "${path##*/}" >>"$store/initial/modules/order"
    done
}

(
    flock 9
    [ -e "$store/fetched" ] || fetch
) 9>"$store/lock"

run=$(mktemp -d "$store/run.XXXXXX")
machine= copies=()
clean() {
    kill $machine "${copies[@]}" 2>/dev/null || true
    rm -rf "$run"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What the guest is told: shell words on the initial file system.
cp -r "$store/initial" "$run/initial"
cp "$top/scripts/vm-init.sh" "$run/initial/init"
chmod +x "$run/initial/init"
printf 'store=%q\nout=%q\nmodules=%q\n' "$store" "$out" "$modules" >"$run/initial/told"
{
    for name in PATH HOME LANG $(compgen -e | grep -E '^(NETSTAGE|RUST|CARGO)_' || true); do
        [ -z "${!name+set}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    done
    printf 'PATH=$PATH:/usr/sbin:/sbin:/run/vm\ncd %q\nexec' "$PWD"
    printf ' %q' "$@"
    echo
} >"$run/initial/command"
(cd "$run/initial" && find . | "$store/root/bin/busybox" cpio -o -H newc 2>/dev/null) >"$run/initial.cpio"

# What it writes comes by two pipes, its exit code by a file.
mkfifo "$run/stdout" "$run/stderr"
cat "$run/stdout" & copies+=($!)
cat "$run/stderr" >&2 & copies+=($!)
arguments=(-nodefaults -no-user-config -display none -no-reboot -m "$memory" -rtc clock=vm
    -kernel "$store"/root/boot/vmlinuz-* -initrd "$run/initial.cpio"
    -append "console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable random.trust_cpu=on"
    -serial "file:$run/console" -device virtio-rng-pci -device virtio-serial-pci)
for port in stdout stderr status; do
    arguments+=(-chardev "file,id=$port,path=$run/$port" -device "virtserialport,chardev=$port,name=$port")
done
share() {
    arguments+=(-fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3"
        -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}
share host / ,readonly=on
share out "$out" ""
if [ -n "$counted" ]; then
    arguments+=(-machine q35,hpet=off -accel tcg -cpu max -smp 1 -icount "shift=0,sleep=off")
elif grep -qwE 'vmx|svm' /proc/cpuinfo && [ -w /dev/kvm ]; then
    arguments+=(-machine q35 -accel kvm -cpu host -smp "$cpus")
else
    arguments+=(-machine q35 -accel tcg,thread=multi -cpu max -smp "$cpus")
fi
qemu-system-x86_64 "${arguments[@]}" </dev/null 2>"$run/qemu" &
machine=$!
wait "$machine" || true
machine=
if [ ! -s "$run/status" ]; then
    cat "$run/qemu" >&2
    tail -20 "$run/console" >&2 || true
    fail "the machine ended without an exit code"
fi
wait "${copies[@]}"
copies=()
exit "$(cat "$run/status")"
