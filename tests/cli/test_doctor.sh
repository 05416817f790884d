#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvwheel doctor, start and status on hosts that refuse something.
#
#     test_doctor.sh KVWHEEL KVWHEELD FAULTY NEXT FORBID
set -u

kvwheel=$1
export KVWHEELD=$2
faulty=$3
next=$4
forbid=$5
folder=$(mktemp -d /tmp/kvw-doctor-XXXXXX)
export KVWHEEL_SOCKET=$folder/run/s
group=
failures=0

cleanup() {
    "$kvwheel" stop --force >/dev/null 2>&1
    [ -z "$group" ] || rmdir "$group"
    rm -rf "$folder"
}
trap cleanup EXIT

fail() {
    echo "FAIL: $*"
    head -c 3000 "$folder/out"
    failures=$((failures + 1))
}

# expect CODES COMMAND...: its exit code is one of "0 5".
expect() {
    local codes=" $1 " have
    shift
    "$@" >"$folder/out" 2>&1 </dev/null
    have=$?
    [[ $codes == *" $have "* ]] || fail "$*: exit code $have, need$codes"
}

# says PATTERN
says() {
    grep -qE -- "$1" "$folder/out" || fail "does not say '$1'"
}

# mended WHAT COMMAND: a finding, and the line below it.
mended() {
    grep -E -A1 -- "^(note|wrong) +$1 " "$folder/out" | grep -qE -- "^ +[$] .*$2" ||
        fail "$1 is not mended by '$2'"
}

# json EXPRESSION
json() {
    python3 -c 'import json, sys
v = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), v' "$folder/out" "$1" || fail "not so: $1"
}

test_as_it_is() {
    expect "0 5" "$kvwheel" doctor
    local what
    for what in program io_uring memfd pidfd proc descriptors memory mappings numa folder socket daemon; do
        says "^(ok|note) +$what "
    done
    if compgen -G "/sys/bus/virtio/drivers/virtio_*/virtio*" | grep -qE "_(mem|balloon)/"; then
        says "^(ok|note) +memory .*; virtio-(mem|balloon): the machine's host may give it more"
    fi
    says "^ok +daemon +no daemon at .*; start one: kvwheel start"
    ! grep -E '^wrong' "$folder/out" || fail "something is wrong here"
    expect "0 5" "$kvwheel" doctor --json
    json 'v["worst"] in ("ok", "note") and len(v["findings"]) > 15'
    json 'all(f["mend"] for f in v["findings"] if f["level"] == "wrong")'
    expect 2 "$kvwheel" doctor now
    expect 2 "$KVWHEELD" --check-hosts
    expect 0 "$KVWHEELD" --check-host
}

test_forbidden() {
    expect 1 "$forbid" io_uring_setup "$kvwheel" doctor
    says "^wrong +io_uring +io_uring is forbidden here"
    mended io_uring "seccomp"
    expect 5 "$forbid" io_uring_setup "$KVWHEELD" --check-host
    expect 1 "$forbid" io_uring_setup "$kvwheel" start
    says "did not start: .*io_uring is forbidden here"
    expect 1 "$forbid" io_uring_register "$kvwheel" doctor
    says "^wrong +io_uring .*io_uring_register is forbidden"
    expect 1 "$forbid" memfd_create "$kvwheel" doctor --json
    json '[f["what"] for f in v["findings"] if f["level"] == "wrong"] == ["memfd"]'
    expect 1 "$forbid" pidfd_open "$kvwheel" doctor
    says "^wrong +pidfd .*Operation not permitted"
    expect 1 "$forbid" pidfd_open "$kvwheel" start
    says "did not start"
}

# An older kernel: 17 is fallocate.
test_lacking() {
    KVWHEELD=$faulty KVW_FAULT_LACKS=17 expect 1 "$kvwheel" doctor
    says "^wrong +io_uring .*lacks the operation fallocate"
    mended io_uring "Linux 5.11"
    KVWHEELD=$faulty KVW_FAULT_LACKS=17 expect 1 "$kvwheel" start
    says "did not start: .*lacks the operation fallocate"
    KVWHEELD=/nowhere expect 1 "$kvwheel" doctor
    says "^wrong +program .*KVWHEELD=/nowhere"
    printf '#!/bin/sh\necho strange\n' >"$folder/strange"
    chmod +x "$folder/strange"
    KVWHEELD=$folder/strange expect 1 "$kvwheel" doctor
    says "^wrong +program .*kvwheeld says: strange"
}

# limited LIMIT COMMAND...
limited() {
    local limit=$1
    shift
    (ulimit $limit && "$@")
}

test_limits() {
    expect 5 limited "-n 1000" "$kvwheel" doctor --json
    json '[(f["have"], f["need"] > 1000) for f in v["findings"]
          if f["what"] == "descriptors"] == [(1000, True)]'
    expect 1 limited "-n 200" "$kvwheel" doctor
    mended descriptors "prlimit --pid"
    expect 5 limited "-f 1024" "$kvwheel" doctor
    mended file-size "ulimit -f unlimited"
    if grep -qa __asan_init "$kvwheel"; then
        echo "not tried: a sanitizer needs more address space than a limit leaves"
        return
    fi
    expect 5 limited "-v 4000000" "$kvwheel" doctor
    mended address-space "ulimit -v unlimited"
}

test_running() {
    expect 0 limited "-n 1000" "$kvwheel" start
    expect 5 "$kvwheel" status
    says "^degraded +at most 1000 descriptors of [0-9]+ [(]prlimit --pid"
    expect 5 "$kvwheel" status --json
    json '"1000 descriptors" in v["degraded"] and "oom_score_adj" in v'
    expect 5 "$kvwheel" doctor
    says "^ok +daemon +pid [0-9]+, version [^ ]*, 0 restarts, 0 caches"
    says "^ok +keeper +pid"
    says "^note +degraded +at most 1000 descriptors"
    expect 0 "$kvwheel" stop
    KVWHEELD=$next expect 0 "$kvwheel" start
    expect 5 "$kvwheel" doctor
    mended daemon "kvwheel restart"
    expect 0 "$kvwheel" stop
}

test_socket() {
    echo file >"$folder/file"
    expect 1 "$kvwheel" doctor --socket "$folder/file"
    mended socket "mv $folder/file"
    mkdir -m 0777 "$folder/open"
    chmod 0777 "$folder/open"
    expect 1 "$kvwheel" doctor --socket "$folder/open/s"
    mended folder "chmod go-w $folder/open"
}

# A cgroup of our own with a limit, in either hierarchy, if we may make one.
test_cgroup() {
    local own limit parent
    if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
        own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
        parent=/sys/fs/cgroup/memory$own
        limit=memory.limit_in_bytes
    else
        own=$(sed -n 's/^0:://p' /proc/self/cgroup)
        parent=/sys/fs/cgroup$own
        limit=memory.max
    fi
    group=$parent/kvw-doctor-$$
    if ! mkdir "$group" 2>/dev/null || ! echo 100M >"$group/$limit" 2>/dev/null; then
        echo "not tried: no cgroup with a limit of memory can be made here"
        [ -d "$group" ] || group=
        return
    fi
    expect 1 in_group "$group" "$kvwheel" doctor
    says "^wrong +memory .*the limit is $group/$limit"
    mended memory "echo [0-9]+ > $group/$limit"
    expect 0 in_group "$group" "$kvwheel" start --quota 1G --quota-user 1G
    expect 4 "$kvwheel" create --name big --layers 2 --heads 8 --head-dim 128 --window 65536
    says "memory: need [0-9]+ bytes, have [0-9]+ .*the limit is /sys/fs/cgroup/"
    expect 0 "$kvwheel" stop
    rmdir "$group"
    group=
}

in_group() {
    local to=$1
    shift
    (echo "$BASHPID" >"$to/cgroup.procs" && exec "$@")
}

for test in as_it_is forbidden lacking limits running socket cgroup; do
    test_$test
done
[ $failures -eq 0 ] || exit 1
