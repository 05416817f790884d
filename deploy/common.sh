# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder share. It is sourced by them; by itself it does nothing.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The Debian 12 packages. To build and run:
packages_build=(build-essential cmake ninja-build pkg-config
    liburing-dev libhwloc-dev libjansson-dev libopenmpi-dev openmpi-bin zlib1g-dev)
# To run the tests as well:
packages_test=("${packages_build[@]}" git libcriterion-dev clang-format
    python3 python3-numpy python3-torch libopenblas0-pthread
    python3-pytest python3-pip python3-setuptools python3-wheel mypy procps
    qemu-system-x86 busybox-static cpio)
# For the tests with clang and clang-tidy, and the long ones with emulated hosts:
packages_full=("${packages_test[@]}" clang clang-tidy iproute2 slurm-wlm munge)

# say TEXT: one step, with the seconds since the start.
say() {
    printf '[%4d s] %s\n' "$SECONDS" "$*"
}

# stop CODE TEXT
stop() {
    local code=$1
    shift
    printf '[%4d s] %s: %s\n' "$SECONDS" "$(basename "$0")" "$*" >&2
    exit "$code"
}

# need_packages NAME...: install what is missing. Not root: say how, exit 3.
need_packages() {
    local installed name missing=()
    if ! command -v dpkg-query >/dev/null; then
        say "no Debian: packages are not checked. On Debian 12 they are: $*"
        return
    fi
    installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
    for name in "$@"; do
        grep -qx "$name installed" <<<"$installed" || missing+=("$name")
    done
    if ((${#missing[@]} == 0)); then
        say "packages: nothing is missing"
        return
    fi
    if ((EUID != 0)); then
        echo "These packages are missing. As root, run this, and then $(basename "$0") again:" >&2
        echo "    apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 3
    fi
    say "packages: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update </dev/null
    apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null
}

# Make mpirun work on this one machine: as root, and where there is no ssh, which it looks
# for even if all ranks are here.
prepare_mpi() {
    if ((EUID == 0)); then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    if ! command -v ssh >/dev/null && ! command -v rsh >/dev/null; then
        export OMPI_MCA_plm=${OMPI_MCA_plm:-isolated}
    fi
}

# not_run BUILD LOG: names of tests that passed over something, with the reason. CTest's
# own word for it is in its output; Criterion's is in the log of the tests' output.
# tests/guard/check-skips tries this and the next.
not_run() {
    sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: \([^ ]*\) .*\*\*\*\(Skipped\|Not Run\).*/\1 \2/p' "$2"
    awk '/^[0-9]+\/[0-9]+ Testing: / { test = $3 }
         / Synthesis: Tested: 0 / { print test " has run no test" }
         /\[SKIP\] / { sub(/.*\[SKIP\] /, ""); name = $1; sub(/:$/, "", name)
                       $1 = ""; print test "/" name $0 }' \
        "$1/Testing/Temporary/LastTest.log"
}

# allowed_skip LIST NAME: the reason that the list gives; fails if there is none.
allowed_skip() {
    awk -v name="$2" '$1 == name && NF > 1 { sub(/^[^ ]+ +/, ""); print; found = 1 }
                      END { exit !found }' "$1"
}
