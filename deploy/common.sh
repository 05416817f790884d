# SPDX-License-Identifier: Apache-2.0
# What quickstart.sh and test.sh share. It is sourced by them; by itself it does nothing.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The Debian 12 packages. To build and run:
packages_build=(build-essential cmake ninja-build pkg-config
    liburing-dev libhwloc-dev libjansson-dev libopenmpi-dev openmpi-bin)
# To run the tests as well:
packages_test=("${packages_build[@]}" git libcriterion-dev clang-format
    python3 python3-numpy python3-torch libopenblas0-pthread)
# For the tests with clang and clang-tidy too:
packages_full=("${packages_test[@]}" clang clang-tidy)

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
