#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'END'
usage: deploy/test.sh [--full] [--long] [--preset NAME] [--label REGEX]

Install what the tests need (as root; otherwise say what is missing), build, test.

  (nothing)        what CI runs: the preset dev with all its tests but the long ones (the
                   rules of tests/lint too), then asan with the labels unit, kernel,
                   integration and guard, without the tests that attack, kill and starve
                   by the thousand (--full has them); the preset release is built
  --full           dev, asan, clang and tsan with all their tests, the long ones too,
                   release with those of the examples, in their longest form,
                   clang-tidy, and each fuzzer for ten seconds
  --long           only the soak: the preset dev with the tests of label soak
  --preset NAME    only this preset of CMakePresets.json, with all its tests, long ones too
  --label REGEX    only the tests whose label matches, for instance lint
  --help           this text

docs/testing.md says what each label tries and how long it takes. Benchmarks (label bench)
are never run here. A test that is skipped counts as failed
unless tests/allowed-skips names it. So does a test that leaves a process running.
Only build/ and a temporary folder are written, and no daemon of yours is touched: the
tests have a runtime folder of their own.

Exit codes: 0 all passed; 1 something failed; 2 wrong use; 3 packages are missing and
this is not root.
END
}

is_full=0
is_long=0
preset=
label=
while (($#)); do
    case $1 in
    --full) is_full=1 ;;
    --long) is_long=1 ;;
    --preset | --label)
        (($# > 1)) || stop 2 "$1 wants a value; see --help"
        [[ $1 == --preset ]] && preset=$2 || label=$2
        shift
        ;;
    --help)
        usage
        exit 0
        ;;
    *) stop 2 "unknown argument: $1; see --help" ;;
    esac
    shift
done

cd "$root"
# A run is: preset, and of its labels those that match. No run includes label bench, and
# only --long the soak.
without='^(bench|soak)$'
builds_release=0
parts='^(unit|kernel|integration|guard)$'
heavy=
if ((is_long)); then
    without='^bench$'
    runs=("dev ^soak$")
elif [[ -n $preset ]]; then
    runs=("$preset $label")
elif ((is_full)); then
    runs=("dev $label" "asan $label" "clang $label" "tsan $label" "release ${label:-^example$}"
        "fuzz ${label:-fuzz}")
elif [[ -n $label ]]; then
    runs=("dev $label")
else
    without='^(bench|soak|long)$'
    runs=("dev" "asan $parts")
    builds_release=1
    heavy='^(bench|death|faults|hostile)_'
fi

scratch=
run_mark=kvw-test-$$-$RANDOM
summary=()
is_failed=0

# fail TEXT: goes into the closing summary.
fail() {
    summary+=("FAILED  $*")
    is_failed=1
}

clean_up() {
    [[ -z $scratch ]] || rm -rf "$scratch"
}
trap clean_up EXIT

# build PRESET [TESTS]: ON by default
build() {
    local definitions=("-DKVW_TESTS=${2:-ON}")
    if ((is_full)) && [[ $1 == clang ]]; then
        definitions+=(-DKVW_TIDY=ON)
    fi
    cmake --preset "$1" "${definitions[@]}" && cmake --build --preset "$1" </dev/null
}

# running PRESET: pid and command of what its tests started and did not end.
running() {
    local process environment
    for process in /proc/[0-9]*; do
        if [[ ${process#/proc/} != "$$" ]] &&
            environment=$(tr '\0' '\n' 2>/dev/null <"$process/environ") &&
            grep -qx "KVW_TEST_RUN=$run_mark-$1" <<<"$environment"; then
            printf '%s %s\n' "${process#/proc/}" "$(tr '\0' ' ' <"$process/cmdline")"
        fi
    done 2>/dev/null
}

# left_running PRESET: the same, after those that are just ending have had three seconds.
left_running() {
    local deadline=$((SECONDS + 3))
    while [[ -n $(running "$1") ]] && ((SECONDS < deadline)); do
        sleep 0.2
    done
    running "$1"
}

# test_preset PRESET [LABEL]
test_preset() {
    local started=$SECONDS log=build/$1/test.log name rest reason
    # What the tests printed, and how long they took: deploy/reliability.sh reads it.
    local results=test.xml
    ((!is_long)) || results=soak.xml
    local filter=(--no-tests=error -LE "$without")
    say "$1: building"
    if ! build "$1"; then
        fail "$1: does not build"
        return
    fi
    if [[ -n ${2:-} ]]; then
        filter+=(-L "$2")
        # Not every preset has tests of every label.
        ((!is_full)) || filter[0]=--no-tests=ignore
    fi
    if [[ $1 == asan && -n $heavy ]]; then
        filter+=(-E "$heavy")
    fi
    # Sanitizers of this age hang now and then where addresses are as random as can be.
    local plain=()
    if [[ $1 =~ ^(asan|tsan|fuzz)$ ]] && setarch -R true 2>/dev/null; then
        plain=(setarch -R)
    fi
    say "$1: testing ${2:+(labels $2)}"
    if ! KVW_TEST_RUN=$run_mark-$1 TMPDIR=$scratch XDG_RUNTIME_DIR=$scratch/run \
        CRITERION_VERBOSITY_LEVEL=1 \
        "${plain[@]}" ctest --test-dir "build/$1" --parallel 2 --output-on-failure --output-junit "$results" \
        --test-output-size-passed 1000000 "${filter[@]}" </dev/null 2>&1 | tee "$log"; then
        fail "$1: see above"
    fi
    while read -r name rest; do
        if reason=$(allowed_skip tests/allowed-skips "$name"); then
            summary+=("skipped $1: $name: $reason")
        else
            fail "$1: $name: $rest"
        fi
    done < <(not_run "build/$1" "$log")
    while read -r name rest; do
        fail "$1: left running: $name $rest"
    done < <(left_running "$1")
    summary+=("$1: $(sed -n 's/^\([0-9]*% tests passed.*\)/\1/p' "$log"), $((SECONDS - started)) s")
}

if ((is_full)) || [[ $preset == clang ]]; then
    need_packages "${packages_full[@]}"
else
    need_packages "${packages_test[@]}"
fi
[[ -z $preset ]] || cmake --list-presets | grep -q "^ *\"$preset\" " ||
    stop 2 "no preset $preset in CMakePresets.json"
prepare_mpi
# Debian's python3 has Debian's numpy and torch; another one in the path does not.
export PATH="/usr/bin:/bin:$PATH"
scratch=$(mktemp -d /tmp/kvw-test-XXXXXX)
mkdir -m 700 "$scratch/run"

for run in "${runs[@]}"; do
    read -r name labels <<<"$run"
    test_preset "$name" "$labels"
done
if ((builds_release)); then
    # What users build: compilers see more of it than of dev.
    started=$SECONDS
    say "release: building"
    build release OFF || fail "release: does not build"
    summary+=("release: built, $((SECONDS - started)) s")
fi

echo
say "deploy/test.sh: closing summary"
printf '    %s\n' "${summary[@]}"
if ((is_failed)); then
    echo "FAILED"
    exit 1
fi
echo "PASSED"
