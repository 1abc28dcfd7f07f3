#!/usr/bin/env bash
# Runs a command in a virtual machine with Debian's kernel, for features that the host's kernel lacks:
#
#     scripts/vm.sh [OPTION…] COMMAND [ARGUMENT…]
#
#     --counted       advance the clock by 1 ns per instruction, so that the load of the host does not
#                     affect times in the machine (one emulated processor)
#     --cpus N        number of processors (2)
#     --memory SIZE   memory (2G)
#     --modules LIST  kernel modules to load at the start; others are loaded on demand
#                     (sch_netem mpls_router mpls_iptunnel tun)
#     --out DIR       folder whose changes are kept (target/vm/out)
#
# The command runs as root in the current folder and sees this host's files. Changes outside --out are discarded. The
# machine has no network except what the command creates. The exit code is the command's, or 125 if the machine failed.
# The variables PATH, HOME, LANG, NETSTAGE_…, RUST_… and CARGO_… are passed to the command.
#
# Needs Debian's package qemu-system-x86. apt downloads the kernel and busybox into target/vm without installing them.
# Without hardware virtualization QEMU emulates the processor, which is 10 to 30 times slower.
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
        -*) fail "unknown option $1; the first lines of $0 list the options" ;;
        *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || fail "usage: scripts/vm.sh [OPTION…] COMMAND [ARGUMENT…]"
command -v qemu-system-x86_64 >/dev/null || fail "QEMU missing; run apt-get install qemu-system-x86"
mkdir -p "$store" "$out"
out=$(cd "$out" && pwd)

# Downloads and unpacks the kernel and busybox.
fetch() {
    command -v apt-get >/dev/null || fail "apt-get missing; the kernel comes from Debian's archive"
    local kernel log=$store/fetch.log
    kernel=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -1)
    [ -n "$kernel" ] || fail "package linux-image-amd64 unknown; run apt-get update"
    echo "vm: downloading $kernel and busybox-static into target/vm" >&2
    rm -rf "$store/fetch" "$store/root" && mkdir "$store/fetch"
    (cd "$store/fetch" && apt-get download "$kernel" busybox-static) >"$log" 2>&1 ||
        { tail -5 "$log" >&2; fail "apt-get download failed; run apt-get update"; }
    for package in "$store"/fetch/*.deb; do dpkg -x "$package" "$store/root"; done
    "$store/root/bin/busybox" depmod -b "$store/root" "$(ls "$store/root/lib/modules")"
    # The modules of the initial file system, in load order.
    local tree
    tree=$store/root/lib/modules/$(ls "$store/root/lib/modules")
    mkdir -p "$store/initial/modules"
    cp "$store/root/bin/busybox" "$store/initial/"
    : >"$store/initial/modules/order"
    for module in virtio_pci virtio_console virtio_rng 9pnet_virtio 9p overlay; do add_module "$tree" "$module"; done
    rm -rf "$store/fetch"
    touch "$store/fetched"
}

# Copies a module and its dependencies, which `modules.dep` lists in reverse load order.
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

# Parameters of the guest, as shell variables in the initial file system.
cp -r "$store/initial" "$run/initial"
cp "$top/scripts/vm-init.sh" "$run/initial/init"
chmod +x "$run/initial/init"
printf 'store=%q\nout=%q\nmodules=%q\n' "$store" "$out" "$modules" >"$run/initial/settings"
{
    for name in PATH HOME LANG $(compgen -e | grep -E '^(NETSTAGE|RUST|CARGO)_' || true); do
        [ -z "${!name+set}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    done
    printf 'PATH=$PATH:/usr/sbin:/sbin:/run/vm\ncd %q\nexec' "$PWD"
    printf ' %q' "$@"
    echo
} >"$run/initial/command"
(cd "$run/initial" && find . | "$store/root/bin/busybox" cpio -o -H newc 2>/dev/null) >"$run/initial.cpio"

# Output arrives through two pipes, the exit code in a file.
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
