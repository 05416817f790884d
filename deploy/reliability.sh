#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'END'
usage: deploy/reliability.sh [--reuse]

Run the tests of the preset dev, the long ones and the soak too, and make of what they
printed docs/reliability.md and the table of docs/testing.md.

  --reuse  make them of the last runs of deploy/test.sh --preset dev and --long
  --help   this text

Exit codes: 0 made; 1 a test failed, is missing or was not run; 2 wrong use.
END
}

is_reusing=0
case ${1:-} in
"") ;;
--reuse) is_reusing=1 ;;
--help)
    usage
    exit 0
    ;;
*) stop 2 "unknown argument: $1; see --help" ;;
esac

cd "$root"
if ((!is_reusing)); then
    deploy/test.sh --preset dev
    deploy/test.sh --long
fi
tests/reliability/make build/dev docs/reliability.md
tests/reliability/label-times build/dev docs/testing.md
say "made docs/reliability.md and the table of docs/testing.md"
