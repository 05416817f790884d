#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
    cat <<'END'
usage: deploy/install.sh [--build FOLDER] [--uninstall] PREFIX

Build the preset release and install it to PREFIX, for which no root is needed where you may
write there: programs, libraries, headers, and pkg-config files that find their own prefix.

  --build FOLDER   install this configured and built folder in place of build/release
  --uninstall      remove what was installed to PREFIX, and folders that are then empty;
                   what is not of the installation stays

The list of installed files is kept in PREFIX/share/kvwheel/installed. Programs run from
PREFIX/bin without LD_LIBRARY_PATH. A running daemon goes on after --uninstall; end it
before by `kvwheel stop`.

Exit codes: 0 done; 1 it does not build or install; 2 wrong use.
END
}

build=
is_removal=0
prefix=
while (($#)); do
    case $1 in
    --build)
        (($# > 1)) || stop 2 "--build wants a folder; see --help"
        build=$(realpath -e "$2") || stop 2 "no folder $2"
        shift
        ;;
    --uninstall) is_removal=1 ;;
    --help)
        usage
        exit 0
        ;;
    -*) stop 2 "unknown argument: $1; see --help" ;;
    *)
        [[ -z $prefix ]] || stop 2 "one PREFIX, not two; see --help"
        prefix=$(realpath -m "$1")
        ;;
    esac
    shift
done
[[ -n $prefix ]] || stop 2 "no PREFIX; see --help"
list=$prefix/share/kvwheel/installed

# Files first, then the folders that they lay in, deepest first.
uninstall() {
    local file folder
    [[ -f $list ]] || stop 1 "$list is not there: nothing was installed to $prefix by this"
    while IFS= read -r file; do
        [[ $file == "$prefix"/* && $file != */../* ]] ||
            stop 1 "$list names '$file', which is not in $prefix"
    done <"$list"
    while IFS= read -r file; do
        rm -f -- "$file"
    done <"$list"
    while IFS= read -r file; do
        folder=${file%/*}
        while [[ $folder == "$prefix"/* ]]; do
            printf '%s\n' "$folder"
            folder=${folder%/*}
        done
    done <"$list" >"$list.folders"
    printf '%s\n' "${list%/*}" "${list%/*/*}" >>"$list.folders"
    mapfile -t folders < <(sort -ru "$list.folders")
    rm -f -- "$list" "$list.folders"
    rmdir --ignore-fail-on-non-empty -- "${folders[@]}" 2>/dev/null || true
    say "kvwheel is no longer in $prefix"
}

if ((is_removal)); then
    uninstall
    exit 0
fi

if [[ -z $build ]]; then
    cd "$root"
    build=$root/build/release
    [[ -e $build/build.ninja ]] || cmake --preset release -DKVW_TESTS=OFF ||
        stop 1 "cannot configure"
    cmake --build "$build" </dev/null || stop 1 "does not build"
fi
[[ -f $build/cmake_install.cmake ]] || stop 2 "$build was not configured by cmake"
cmake --install "$build" --prefix "$prefix" >/dev/null || stop 1 "does not install"
mkdir -p "${list%/*}"
cp "$build/install_manifest.txt" "$list"
printf '\n' >>"$list"
sed -i '/^$/d' "$list"
say "installed to $prefix; put $prefix/bin into PATH, and try: kvwheel doctor"
