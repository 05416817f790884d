#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Boot an emulated machine with NUMA nodes and run numa_guest in it.
#
#   guest.sh short | whole | MACHINE      one of: 2, 4, memory-only
#
# Nodes of their own, distances, memory-only nodes: all of it real to the kernel, which is
# Debian's (6.1), taken out of its package and not installed. Without KVM a boot takes some
# seconds. Exit code 77, with the reason, where QEMU or the package cannot be had.
set -euo pipefail

how=$1
cache=${KVW_GUEST_CACHE:-$KVW_BUILD/numa-guest}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

skip() {
    echo "SKIP: $*"
    exit 77
}

for tool in qemu-system-x86_64 busybox cpio dpkg-deb; do
    command -v "$tool" >/dev/null || skip "$tool is not there (qemu-system-x86, busybox-static, cpio)"
done

# The newest kernel for virtual machines that apt knows, once.
fetch_kernel() {
    local package
    mkdir -p "$cache"
    ls "$cache"/vmlinuz-* >/dev/null 2>&1 && return 0
    command -v apt-get >/dev/null || return 1
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        sed -n 's/.*Depends: \(linux-image-[0-9].*-cloud-amd64\)$/\1/p' | head -1)
    [[ -n $package ]] || return 1
    (cd "$folder" && timeout 100 apt-get download -qq "$package" >/dev/null 2>&1) || return 1
    dpkg-deb --fsys-tarfile "$folder"/linux-image-*.deb |
        tar -x -C "$folder" --wildcards './boot/vmlinuz-*' || return 1
    mv "$folder"/boot/vmlinuz-* "$cache/"
    rm -f "$folder"/*.deb
}
fetch_kernel || skip "no kernel: apt-get download linux-image-cloud-amd64 failed"
kernel=$(ls "$cache"/vmlinuz-* | tail -1)

# Busybox, our programs, and the libraries that they name, each once: it lies in the memory of
# the machine's first node.
root=$folder/root
mkdir -p "$root"/{bin,dev,proc,sys,tmp,lib,lib64}
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in sh mount cat grep sed head dmesg poweroff mkdir ls sleep echo rm; do
    ln -s busybox "$root/bin/$applet"
done
programs=("$KVW_BIN"/kvwheel "$KVW_BIN"/kvwheeld "$KVW_BIN"/kvwheel-bench "$KVW_TESTS"/numa_guest)
cp "${programs[@]}" "$root/bin/"
cp "$KVW_TESTS/test_cli_forbid" "$root/bin/forbid"
for library in $(ldd "${programs[@]}" "$KVW_TESTS/test_cli_forbid" |
    grep -o '/[^ ]*' | grep -v ':$' | sort -u); do
    place=$root$(dirname "$library")
    [[ $library == /lib* || $library == /usr/* ]] || place=$root/lib # /tmp is another one there
    mkdir -p "$place"
    cp -L "$library" "$place/"
done
cat >"$root/init" <<'END'
#!/bin/sh
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /tmp
export PATH=/bin HOME=/tmp LD_LIBRARY_PATH=/lib
mode=$(sed -n 's/.*kvw=\([^ ]*\).*/\1/p' /proc/cmdline | sed 's/,/ /g')
numa_guest $mode
echo "kvw-guest-exit $?"
poweroff -f
END
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$folder/initramfs"

# boot NODES-WITH-CPUS MODE [memory-only]: with one node more, of memory alone.
boot() {
    local nodes=$1 mode=$2 more=${3:-} arguments=() all i j seconds
    all=$((nodes + (${#more} > 0)))
    for ((i = 0; i < all; i++)); do
        arguments+=(-object "memory-backend-ram,id=m$i,size=256M")
        if ((i < nodes)); then
            arguments+=(-numa "node,nodeid=$i,cpus=$i,memdev=m$i")
        else
            arguments+=(-numa "node,nodeid=$i,memdev=m$i")
        fi
    done
    for ((i = 0; i < all; i++)); do
        for ((j = 0; j < all; j++)); do
            arguments+=(-numa "dist,src=$i,dst=$j,val=$((i == j ? 10 : 21 + 10 * ((i ^ j) > 1)))")
        done
    done
    seconds=$SECONDS
    timeout "${KVW_GUEST_SECONDS:-300}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi \
        -cpu max -smp "$nodes,sockets=$nodes,cores=1,threads=1" -m $((all * 256)) \
        "${arguments[@]}" -nodefaults -no-user-config -display none -serial stdio -no-reboot \
        -kernel "$kernel" -initrd "$folder/initramfs" \
        -append "console=ttyS0 quiet panic=-1 kvw=$mode,$nodes${more:+,$more}" \
        </dev/null >"$folder/log" 2>&1 || true
    # Progress on the console erases its line: what follows is a line of its own.
    tr -d '\r' <"$folder/log" | sed 's/^.*\x1b\[K//' >"$folder/text"
    grep -E '^(ok|FAILED|#)' "$folder/text" || true
    echo "$nodes nodes $mode $more: $((SECONDS - seconds)) s, $(grep -c '^ok' "$folder/text" || true) claims"
    if ! grep -q '^kvw-guest-exit 0$' "$folder/text"; then
        echo "the machine's last words:"
        tail -60 "$folder/text"
        return 1
    fi
    [[ $mode == short || -z ${KVW_GUEST_LOG:-} ]] || cat "$folder/text"
}

failed=0
if [[ $how == short ]]; then
    boot 2 short || failed=1
else
    [[ $how != whole && $how != 2 ]] || boot 2 whole || failed=1
    [[ $how != whole && $how != 4 ]] || boot 4 whole || failed=1
    [[ $how != whole && $how != memory-only ]] || boot 2 whole memory-only || failed=1
fi
exit $failed
