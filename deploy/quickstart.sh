#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

workers=2
tokens=1200
window=256
sink=4
rolls_least=4
frames=300
video=build/video.png
sheet=build/video-sheet.png
prompt='In the beginning God created the heaven and the earth. And the earth was '
prompt+='without form, and void; and darkness was upon the face of the deep.'

usage() {
    cat <<END
usage: deploy/quickstart.sh [--video | --help]

Install what is needed to build (as root; otherwise say what is missing), build the
preset release, and generate $tokens tokens of text by $workers worker processes with the small
language model in examples/generate/model. The keys and values lie outside of the
workers, in one rolling cache with a window of $window rows, and the workers attend to them
where they lie. No service has to be set up: the first worker starts a daemon.

--video: $frames frames of video instead, by the small model in examples/video/model: balls
that bounce, with another prompt from the middle on, far past the window of 15 frames. It
writes $video (an animated PNG) and $sheet (all frames side by side).

The first run takes minutes, for the build; the next ones take seconds.

Exit codes: 0 done; 1 it does not build or run; 2 wrong use; 3 packages are missing and
this is not root; 4 it ran, but the cache did not roll as it should.
END
}

what=text
case ${1:-} in
'') ;;
--video) what=video ;;
--help)
    usage
    exit 0
    ;;
*) stop 2 "unknown argument: $1; see --help" ;;
esac

cd "$root"
need_packages "${packages_build[@]}"
prepare_mpi

say "building the preset release in build/release"
# A folder that test.sh has configured keeps its tests; a new one needs none.
if [[ ! -e build/release/build.ninja ]]; then
    cmake --preset release -DKVW_TESTS=OFF || stop 1 "cannot configure"
fi
cmake --build --preset release </dev/null ||
    stop 1 "does not build"

scratch=$(mktemp -d "${TMPDIR:-/tmp}/kvwheel-quickstart-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
report=$scratch/report.json

# show_text: the tokens of the report, which are bytes, as text; all of it into $report.
show_text() {
    local line octal
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$report"
        if [[ $line =~ \"token\":\ *([0-9]+) ]]; then
            printf -v octal '\\%03o' "${BASH_REMATCH[1]}"
            # shellcheck disable=SC2059
            printf "$octal"
        fi
    done
    printf '\n'
}

# field NAME: a number of the report's last line, the result.
field() {
    tail -n 1 "$report" | sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p"
}

# left_running: the daemon, which the workers may have found or started.
left_running() {
    local daemon
    daemon=$(build/release/bin/kvwheel status 2>/dev/null | sed -n 's/^daemon *//p') || true
    case $daemon in
    '') echo "nothing" ;;
    *embedded*) echo "$daemon: ends 60 s after its last client" ;;
    *) echo "$daemon: was there before" ;;
    esac
}

if [[ $what == video ]]; then
    say "making $frames frames of video by $workers workers"
    mpirun --oversubscribe --mca mpi_yield_when_idle 1 -n "$workers" \
        build/release/bin/kvwheel-video --model examples/video/model \
        --prompt "2 slow, $((frames / 2)): 3 fast" --frames "$frames" --seed 1 \
        --png "$video" --sheet "$sheet" --json </dev/null >"$report" ||
        stop 1 "kvwheel-video failed"
    rolls=$(field rolls)
    say "done"
    cat <<END
    frames made          $(field frames), two slow balls, then three fast ones
    frames per second    $(LC_ALL=C printf '%.1f' "$(field frames_per_second)")
    window rolled past   $rolls times (15 frames, 3 of them a sink that stays)
    left running         $(left_running)

To look at it, open it in a web browser:
    firefox $video
    firefox $sheet
END
    if [[ $(field frames) != "$frames" ]] || ((rolls < rolls_least)); then
        stop 4 "wanted $frames frames and $rolls_least rolls"
    fi
    exit 0
fi

say "generating $tokens tokens by $workers workers, window $window rows; the text comes as they make it"
printf '\n%s' "$prompt"
mpirun --oversubscribe --mca mpi_yield_when_idle 1 -n "$workers" \
    build/release/bin/kvwheel-generate --model examples/generate/model \
    --prompt "$prompt" --tokens "$tokens" --window "$window" --sink "$sink" \
    --positions window --temperature 0.7 --seed 1 --json \
    </dev/null 2>"$scratch/errors" | show_text || {
    cat "$scratch/errors" >&2
    stop 1 "kvwheel-generate failed"
}
echo

made=$(grep -c '"token":' "$report")
rolls=$(field rolls)
new=$(field bytes_new_rows)
written=$(field bytes_written)
say "done"
cat <<END
    tokens generated     $made, in $(field rows) rows with the prompt
    tokens per second    $(LC_ALL=C printf '%.1f' "$(field tokens_per_second)")
    window rolled past   $rolls times ($window rows, $sink of them a sink that stays)
    bytes of new rows    $new
    bytes written        $written: rolling moves no row
    left running         $(left_running)

Next:
    build/release/bin/kvwheel status
    build/release/bin/kvwheel-generate --help
    deploy/quickstart.sh --video
    deploy/test.sh
END
if ((made != tokens || rolls < rolls_least)) || [[ -z $new || $new != "$written" ]]; then
    stop 4 "wanted $tokens tokens, $rolls_least rolls, and no more bytes written than new rows have"
fi
