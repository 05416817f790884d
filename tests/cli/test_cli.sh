#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command kvwheel against a real daemon: exit codes, words, JSON.
#
#     test_cli.sh KVWHEEL KVWHEELD WORKER
set -u

kvwheel=$1
export KVWHEELD=$2
worker=$3
folder=$(mktemp -d /tmp/kvw-cli-XXXXXX)
export KVWHEEL_SOCKET=$folder/run/kvwheeld.sock
flags="--layers 2 --heads 4 --head-dim 16 --window 64 --chunk 8"
failures=0

cleanup() {
    "$kvwheel" stop --force >/dev/null 2>&1
    rm -rf "$folder"
}
trap cleanup EXIT

fail() {
    echo "FAIL: $*"
    echo "  stdout: $(head -c 600 "$folder/out")"
    echo "  stderr: $(head -c 600 "$folder/err")"
    failures=$((failures + 1))
}

# expect CODE ARGUMENTS...: run kvwheel.
expect() {
    local code=$1 have
    shift
    "$kvwheel" "$@" >"$folder/out" 2>"$folder/err" </dev/null
    have=$?
    [ $have -eq "$code" ] || fail "kvwheel $*: exit code $have, need $code"
}

# says PATTERN: what the last command printed for people.
says() {
    grep -qE -- "$1" "$folder/out" "$folder/err" || fail "does not say '$1'"
}

# json EXPRESSION: stdout is one JSON value v, of which that is true.
json() {
    python3 -c 'import json, sys
v = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), v' "$folder/out" "$1" 2>>"$folder/err" || fail "not so: $1"
}

# status 0, or 5 where the host does not permit everything.
expect_status() {
    "$kvwheel" "$@" >"$folder/out" 2>"$folder/err"
    case $? in 0 | 5) ;; *) fail "kvwheel $*: no status" ;; esac
}

test_help() {
    local command
    expect 0 --help
    says "Exit codes: 0 done"
    for command in start stop status logs doctor create size ls show verify who kick rm gc; do
        expect 0 $command --help
        says "^usage: kvwheel $command"
        says "^Exit codes:"
        expect 0 help $command
        says "^usage: kvwheel $command"
    done
    for command in "" start stop restart run status logs doctor create size plan topo ls show move verify who kick rm gc; do
        ! "$kvwheel" $command --help | grep -E '.{81}' || fail "$command --help is too wide"
    done
    expect 2 help ls show
    "$kvwheel" --help >/dev/full 2>/dev/null && fail "--help into a full device is no failure"
    expect 0 --version
    says "^kvwheel [0-9]"
    expect 0 --json --version
    json 'v["protocol"] == 1'
}

test_usage() {
    expect 2
    expect 2 nothing
    says "no command 'nothing'"
    expect 2 help nothing
    expect 2 --bogus
    expect 2 ls --bogus
    says "--bogus is unknown"
    expect 2 ls extra
    expect 2 size --layers
    says "--layers lacks its value"
    expect 2 show
    expect 2 show a b
    expect 2 show a/b
    expect 2 verify
    expect 2 verify a b
    expect 2 rm
    expect 2 kick a
    expect 2 kick a --rank 1 --attachment 2
    expect 2 kick a --rank 64
    expect 2 gc --idle soon
    expect 2 gc --idle soon --json
    json 'v["error"] == "EINVAL" and "soon" in v["text"]'
    expect 2 kick a --attachment x
    says "need a whole number"
    expect 2 -zx
    says "option -zx is unknown"
}

# All of this without a daemon.
test_specs() {
    expect 0 size $flags --ranks 2
    says "^self +2 +4 +72 "
    expect 0 --json size $flags --ranks 2
    json 'v["groups"][0]["rows"] == 72 and len(v["rank_bytes"]) == 2'
    json 'sum(v["rank_bytes"]) == 2 * 2 * 4 * 72 * 16 * 2'
    json 'v["groups"][0]["bytes"] == v["data_bytes"] >= sum(v["rank_bytes"])'
    json 'v["total_bytes"] == v["data_bytes"] + v["control_bytes"]'
    expect 0 size --preset longlive-1.3b
    says "^self"
    expect 2 size --preset nobody
    says "longlive-1.3b.*have 'nobody'"
    expect 0 size --preset help
    says "^longlive-1.3b$"
    expect 0 --json create --preset help
    json '"longlive-1.3b" in v'
    expect 2 size --layers 0 --heads 4 --head-dim 16 --window 64
    says "layers: need at least 1"
    expect 2 size --preset longlive-1.3b --window 3
    expect 2 size --preset longlive-1.3b --config /x
    expect 1 size --config /nowhere
    expect 2 size --layers 2 --heads 4
    says "what is the cache"
    expect 2 size $flags --dtype f31
    says "bf16"
    expect 2 size $flags --lanes -1
    expect 2 --json size $flags --sink 60
    json 'v["error"] == "EINVAL" and v["need"] == 68 and v["have"] == 64'
    expect 2 create $flags
    says "--name is missing"
    expect 2 create --name x $flags --lifetime forever
    expect 2 create --name x $flags --lifetime ttl:0
    expect 2 create --name x $flags --mode 0999
    expect 2 create --name .x $flags
}

# How ranks share a cache; without a daemon, too.
test_parts() {
    expect 0 --json size $flags --ranks 16 --layer-parts 2 --lane-parts 2 --lanes 3
    json 'v["parts"] == {"heads": 4, "layers": 2, "lanes": 2, "rows": 1, "row_block": 0}'
    json 'len(v["rank_bytes"]) == v["ranks"] == 16'
    json 'sum(v["rank_bytes"]) == 3 * 2 * 2 * 4 * 72 * 16 * 2'
    expect 0 --json size $flags --layer-parts 2 --lane-parts 2 --lanes 2
    json 'v["ranks"] == 4 and v["parts"]["heads"] == 1'
    expect 0 size $flags --row-parts 2 --row-block 16
    says "^ranks +2 = 1 x 1 x 1 x 2 parts .*in blocks of 16"
    expect 2 size $flags --ranks 5 --layer-parts 2
    says "a multiple of .* 2 x 1 x 1 = 2 .*have 5"
    expect 2 size $flags --layer-parts 0
    says "at least 1"
    expect 2 size $flags --layer-parts 64 --lane-parts 2
    says "ranks: need 1 to 64, have 128"
    expect 2 size $flags --row-parts 2
    says "need --row-block"
    expect 2 size $flags --row-block 8
    says "goes with --row-parts"
    expect 0 size $flags --contiguous
    says "^self .* yes "
    expect 0 --json size --preset gemma3-4b --context 256 --contiguous
    json 'all(g["contiguous"] for g in v["groups"]) and len(v["groups"]) == 2'
    expect 2 size $flags --contiguous --row-parts 2 --row-block 16
    says "contiguous group cannot be split by rows"
}

test_not_running() {
    local command
    for command in stop status ls "show a" "verify a" who "rm a" gc "kick a --rank 0" \
        "create --name a $flags"; do
        expect 3 $command
        says "kvwheel start"
    done
    expect 3 --json ls
    json 'v["error"] == "ENOENT" and v["need"] is None'
    [ ! -e "$folder/run" ] || fail "asking made a folder"
}

# Another user may not enter our folder. (mktemp made it ours alone.)
test_no_permission() {
    setpriv --reuid 65534 --regid 65534 --clear-groups \
        "$kvwheel" --socket "$folder/x.sock" ls >"$folder/out" 2>"$folder/err"
    local code=$?
    [ $code -eq 1 ] || fail "no permission: exit code $code, need 1"
    says "no permission to use the daemon's socket $folder/x.sock"
}

test_wrong_socket() {
    echo file >"$folder/file"
    expect 1 --socket "$folder/file" ls
    says "not a daemon's socket"
    expect 1 --socket "$folder/file" start
    says "not a daemon's socket"
    expect 1 --socket "$folder/$(printf 'x%.0s' {1..120})" ls
    says "of 107 at most"
    expect 1 --socket "" ls
    expect 1 --socket "$folder" ls
    says "not a daemon's socket"
    expect 4 --socket "$folder/none/x.sock" start --foreground
    says "cannot be opened: No such file"
    if [ "$(id -u)" -eq 0 ]; then
        test_no_permission
    fi
    KVWHEELD=/nowhere expect 1 start
    says "KVWHEELD"
    expect 1 start --quota nonsense
    says "did not start.*nonsense"
}

# says_soon FILE PATTERN: wait until a background command has printed it.
says_soon() {
    for _ in $(seq 500); do
        grep -qE -- "$2" "$1" && return
        read -rt 0.01 <> <(:)
    done
    cp "$1" "$folder/out"
    fail "$1 does not come to say $2"
}

test_logs() {
    local log=$KVWHEEL_SOCKET.log pid
    expect 1 --socket "$folder/none.sock" logs
    says "there is no .*/none.sock.log: no daemon was started"
    expect 2 logs -n many
    expect 2 logs extra
    expect 0 create --name logged $flags
    expect 0 logs
    says "^20.*Z kvwheeld daemon [0-9]+ info: cache created name logged "
    expect 0 --json logs
    json 'v[-1]["level"] == "info" and v[-1]["text"].startswith("cache created name logged")'
    json 'v[-1]["role"] == "daemon" and v[-1]["pid"] > 0 and v[-1]["time"][-1] == "Z"'
    [ "$(stat -c %a "$log")" = 600 ] || fail "the log's mode is $(stat -c %a "$log")"
    printf 'an abort says \033[31mred\n' >>"$log"
    expect 0 logs -n 1
    says '^an abort says .x1b.31mred$'
    [ "$(wc -l <"$folder/out")" -eq 1 ] || fail "-n 1 is not one line"
    expect 0 --json logs -n 2
    json 'len(v) == 2 and v[1] == {"text": r"an abort says \x1b[31mred"}'
    expect 0 logs -n 0
    [ ! -s "$folder/out" ] || fail "-n 0 prints something"

    "$kvwheel" logs -n 0 --follow >"$folder/follow" 2>&1 &
    pid=$!
    says_soon "/proc/$pid/cmdline" follow
    expect 0 rm logged
    says_soon "$folder/follow" "cache removed name logged"
    head -c 1100000 /dev/zero | tr '\0' 'x' >>"$log"
    echo >>"$log"
    expect 0 create --name logged $flags
    expect 0 rm logged
    says_soon "$folder/follow" "cache created name logged"
    kill "$pid"
    wait "$pid" 2>/dev/null
    [ "$(stat -c %s "$log.1")" -gt 1000000 ] || fail "a full log was not renamed"
    [ "$(stat -c %s "$log")" -lt 1000 ] || fail "the log was not begun anew"
    expect 0 --json logs -n 2
    json 'v[1]["text"].startswith("cache removed name logged")'
}

# What was logged is there when nobody is.
test_logs_of_the_dead() {
    expect 3 status
    expect 0 logs
    says "kvwheeld daemon [0-9]+ info: cache removed name logged"
    says "^x{99}"
    expect 0 logs -n 1
    says "kvwheeld (daemon|keeper) [0-9]+ "
}

test_start() {
    expect 0 start --quota 128M
    says "^started: pid"
    expect 0 start
    says "^is running already: pid [0-9]+, socket [^;]+$"
    expect 0 start --quota 64M
    says "the options given now change nothing"
    expect 0 --json start
    json 'v["started"] is False and v["embedded"] is False'
    expect_status status
    says "^daemon +pid"
    expect_status --json status
    json 'v["caches"] == 0 and v["bytes_quota"] == 128 << 20'
    "$kvwheel" status >/dev/null
    local code=$?
    expect $code --json status
    json "(v['degraded'] != '') == ($code == 5)"
}

test_caches() {
    expect 0 create --name video $flags --ranks 2 --lanes 3
    says "^created video, .* lifetime keep, mode 0600"
    [ ! -s "$folder/err" ] || fail "progress of what is done at once"
    expect 0 create --name video $flags --ranks 2 --lanes 3
    says "^there is already video"
    expect 0 create --name video $flags --ranks 2 --lanes 3 --lifetime job --mode 0644
    says "^there is already video, .* lifetime keep, mode 0600"
    expect 2 create --name narrow $flags --sink 60
    says "need W >= S [+] chunk = 60 [+] 8 = 68 rows, have W = 64"
    expect 4 create --name video $flags --ranks 1
    says "another spec"
    expect 4 --json create --name big --layers 9 --heads 9 --head-dim 999 --window 99999
    json 'v["error"] == "EDQUOT" and v["need"] > v["have"] > 0'
    expect 0 --json create --name short $flags --lifetime ttl:3600 --mode 0640 --quiet
    json 'v["name"] == "short" and v["existed"] is False'
    [ ! -s "$folder/err" ] || fail "quiet is not quiet"
    expect 0 ls
    says "^video .* 0/2 +3 +0 .* keep +0600"
    says "^short .* ttl:3600 +0640"
    expect 0 --json ls
    json '[c["name"] for c in v] == ["video", "short"]'
    expect 0 show video
    says "^2 +1 +no +0 +self +0"
    says "^ranks +2 = 2 x 1 x 1 x 1 parts"
    says "^ +1 +self +2-3 +2 +0-1 +0-2 +all"
    expect 0 --json show video
    json 'len(v["states"]) == 6 and v["groups"][0]["planes"][1]["name"] == "v"'
    json 'v["groups"][0]["contiguous"] is False and v["rank_parts"][1]["lanes"] == 3'
    json 'v["rank_parts"][1]["groups"][0] == {"name": "self", "head_first": 2,
          "heads": 2, "layer_first": 0, "layers": 2, "model_layers": [0, 1]}'
    expect 0 create --name parted $flags --layer-parts 2 --row-parts 2 --row-block 16
    expect 0 show parted
    says "^ +2 +self +0-3 +1 +1 +0 +0-15 of each 32"
    expect 0 rm parted
    expect 0 create --name twice $flags --contiguous
    expect 0 show twice
    says "^self .* absolute +yes "
    says "^0 +0 +no +0 +self +0"
    expect 0 rm twice
    expect 4 --json create --name twice --layers 64 --heads 64 --lanes 1024 --head-dim 1 \
        --window 1 --contiguous
    json 'v["error"] == "ENOMEM" and v["need"] == 3 * 2 * 64 * 64 * 1024 > v["have"]'
    json '"sysctl -w vm.max_map_count=" in v["text"]'
    expect 4 show nobody
    expect 0 create --name mortal $flags --lifetime job
    expect 0 show mortal
    says "not read: nobody is attached"
    expect 0 --json show mortal
    json 'v["states"] is None'
    expect 0 gc --dry-run
    expect 0 --json gc --idle 0 --dry-run
    json 'v["caches"] >= 2 and v["dry_run"] is True'
}

# allocated NAME: bytes of a cache's memory, by the kernel's account.
allocated() {
    local pid descriptor bytes=0
    pid=$("$kvwheel" --json status | python3 -c 'import json, sys
print(json.load(sys.stdin)["pid"])')
    for descriptor in /proc/"$pid"/fd/*; do
        case $(readlink "$descriptor") in
        "/memfd:kvwheel:$1:"*)
            bytes=$((bytes + 512 * $(stat -L -c %b "$descriptor")))
            ;;
        esac
    done
    echo $bytes
}

# What size says is what create allocates, to the byte.
test_sizes() {
    local preset bytes
    for preset in gpt-oss-20b glm-image; do
        expect 0 --json size --preset $preset --context 256
        bytes=$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))["total_bytes"])' "$folder/out")
        expect 0 --json create --name sized --preset $preset --context 256
        json "v['total_bytes'] == $bytes"
        [ "$(allocated sized)" -eq "$bytes" ] ||
            fail "$preset: $(allocated sized) bytes are allocated, size says $bytes"
        expect 0 rm sized
    done
}

# worker_says WORD [TIMES]: wait until the worker has said it so often.
worker_says() {
    for _ in $(seq 500); do
        [ "$(grep -c "$1" "$folder/worker")" -ge "${2:-1}" ] && return
        read -rt 0.01 <> <(:)
    done
    fail "the worker has not said $1: $(cat "$folder/worker")"
}

# attach NAME RANK [ROWS]: a worker in the background; its pid is in $attached.
attach() {
    exec 9> >("$worker" "$@" >"$folder/worker" 2>&1)
    attached=$!
    worker_says attached
}

# Wait until a process that is no child of ours has ended.
wait_gone() {
    for _ in $(seq 500); do
        kill -0 "$1" 2>/dev/null || return
        read -rt 0.01 <> <(:)
    done
    fail "process $1 does not end: $(cat "$folder/worker")"
}

test_processes() {
    attach video 1
    expect 0 ls
    says "^video .* 1/2 +3 +1 "
    expect 0 who
    says "^video +1 .*/test_cli_worker"
    expect 0 --json who video
    json 'v[0]["rank"] == 1 and v[0]["connected"] and len(v) == 1'
    expect 0 --json who short
    json 'v == []'
    expect 4 who nobody
    expect 4 rm video
    says "attach"
    expect 4 stop
    says "cache"
    expect 4 kick video --rank 0
    expect 0 kick video --rank 1
    says "^killed process"
    expect 0 --json who
    json 'v == []'
    exec 9>&-
}

# damage WORD: the worker turns a bit of a row, a board or the header, there and back.
n_damages=0
damage() {
    echo "$1" >&9
    n_damages=$((n_damages + 1))
    worker_says done $n_damages
}

test_verify() {
    n_damages=0
    expect 0 create --name proved $flags --checksums
    expect 0 show proved
    says "^checksums +yes"
    attach proved 0 100
    worker_says written
    expect 0 verify proved
    says "^proved: nothing is wrong; 1 boards, 0 skipped; rows .* 1024 right, 0 damaged"
    damage row
    expect 6 verify proved
    says "layer 0 .*plane 'v', head 1: rows 103 to 103 are not what was committed"
    says "^proved: DAMAGED; .* 1023 right, 1 damaged"
    expect 6 --json verify proved
    json 'v["damaged"] and v["checksums"] and v["rows_damaged"] == 1'
    json '{k: v["damages"][0][k] for k in ("kind", "rank", "lane", "group", "layer",
          "model_layer", "plane", "head", "row", "rows")} == {"kind": "rows", "rank": 0,
          "lane": 0, "group": "self", "layer": 0, "model_layer": 0, "plane": "v",
          "head": 1, "row": 103, "rows": 1}'
    damage row
    expect 0 --json verify proved
    json 'not v["damaged"] and v["damages"] == [] and v["boards"] == 1'
    damage board
    expect 6 --json verify proved
    json 'v["damages"][0]["kind"] == "board" and v["damages"][0]["layer"] is None'
    damage board
    damage header
    expect 6 --json verify proved
    json '[d["kind"] for d in v["damages"]] == ["header"]'
    expect 6 verify proved
    says "no kvwheel header"
    damage header
    expect 0 verify proved
    exec 9>&-
    wait_gone $attached
    expect 0 rm proved
    expect 0 verify video
    says "rows not looked at"
    expect 1 verify mortal
    says "would end a cache of lifetime job"
    expect 4 verify nobody
}

# A writer that rolls as fast as it can: what it overwrites is no damage.
test_verify_live() {
    local i
    expect 0 create --name rolling $flags --checksums
    attach rolling 0 for-ever
    for i in $(seq 10); do
        expect 0 verify rolling
        says "^rolling: nothing is wrong"
    done
    exec 9>&-
    wait_gone $attached
    expect 0 --json verify rolling
    json 'v["rows"] > 0 and v["rows_skipped"] == 0'
    expect 0 rm rolling
}

test_removed_in_use() {
    expect 0 create --name lasting $flags
    attach lasting 0
    expect 0 rm --force lasting
    says "^removed lasting; its bytes are freed when"
    expect 0 ls
    says "^lasting .* 1/1 +1 +1 .* removed +0600"
    expect 4 show lasting
    says "there is no cache 'lasting'"
    exec 9>&-
    wait_gone $attached
    expect 0 --json ls
    json '"lasting" not in [c["name"] for c in v]'
}

test_restart() {
    local pid
    pid=$("$kvwheel" --json status | python3 -c 'import json, sys
print(json.load(sys.stdin)["pid"])')
    attach video 0
    kill -9 "$pid"
    expect 0 --json ls
    json '"video" in [c["name"] for c in v]'
    expect 0 --json who video
    json 'v[0]["rank"] == 0 and not v[0]["connected"]'
    exec 9>&-
    wait_gone $attached
    expect 0 --json who video
    json 'v == []'
    expect_status --json status
    json "v['restarts'] == 1 and v['pid'] != $pid"
}

test_remove() {
    expect 4 --json rm nobody video
    json 'v[0]["error"] == "ENOENT" and v[1]["freed_bytes"] > 0'
    expect 0 rm short
    says "^removed short"
    expect 4 rm short
    expect 0 gc --idle 0
    says "^removed 1 cache,"
    expect 0 stop
    says "^stopped: pid"
    expect 3 status
}

# Without a daemon, several programs at once get one and the same.
test_embedded() {
    local i
    for i in 1 2 3 4 5 6; do
        "$worker" >"$folder/pid.$i" 2>&1 &
    done
    wait $(jobs -p)
    [ "$(sort -u "$folder"/pid.* | wc -l)" -eq 1 ] || {
        cp "$folder/pid.1" "$folder/out"
        fail "not one daemon: $(cat "$folder"/pid.*)"
    }
    # Those that came too late give up by themselves: a keeper and a daemon stay.
    for i in $(seq 500); do
        [ "$(pgrep -cf "kvwheeld.* --socket $KVWHEEL_SOCKET")" -eq 2 ] && break
        read -rt 0.01 <> <(:)
    done
    expect_status --json status
    json "v['embedded'] and str(v['pid']) == '$(cat "$folder/pid.1")'"
    expect 0 stop
    expect 3 status
}

# A program that is bound to one CPU, as MPI does, starts a daemon that is not.
test_unbound() {
    local cpu pid
    [ "$(nproc)" -gt 1 ] || return
    cpu=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
    pid=$(taskset -c "$cpu" "$worker")
    [ "$(taskset -cp "$pid" | sed 's/.*: //')" != "$cpu" ] || fail "bound to CPU $cpu"
    expect 0 stop
}

test_foreground() {
    "$kvwheel" start --foreground 2>"$folder/foreground" &
    local pid=$!
    for _ in $(seq 500); do
        "$kvwheel" status >/dev/null 2>&1
        [ $? -ne 3 ] && break
        read -rt 0.01 <> <(:)
    done
    expect_status --json status
    json "$pid in (v['pid'], v['keeper_pid'])"
    expect 0 stop
    wait $pid
    grep -q . "$folder/foreground" || fail "nothing was logged in the foreground"
}

for test in help usage specs parts not_running wrong_socket start logs caches sizes processes \
    verify verify_live removed_in_use restart remove logs_of_the_dead embedded unbound foreground; do
    "test_$test"
done
echo "$failures failures"
[ $failures -eq 0 ]
