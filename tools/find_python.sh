#!/usr/bin/env bash
# Prints the path of a working Python of the version asked for (`3.11`), or of the command asked for (`python3.12`).
# A name on PATH isn't enough: version managers leave shims that answer "not installed here", so each candidate is run.
set -u
want="${1:?usage: find_python.sh VERSION_OR_COMMAND}"
version="$(printf '%s' "$want" | grep -oE '[0-9]+\.[0-9]+$' || true)"

works() {
    [ -n "$1" ] || return 1
    found="$("$1" -c 'import sys; print("%d.%d %s" % (*sys.version_info[:2], sys.executable))' 2>/dev/null)" || return 1
    [ -z "$version" ] || [ "${found%% *}" = "$version" ] || return 1
    printf '%s\n' "${found#* }"
}

candidates() {
    case "$want" in [0-9]*) ;; *) command -v "$want" ;; esac
    [ -n "$version" ] && command -v "python$version"
    command -v python3
    command -v python
    command -v uv >/dev/null 2>&1 && [ -n "$version" ] && uv python find "$version" 2>/dev/null
    if [ -n "$version" ]; then
        for root in "${PYENV_ROOT:-$HOME/.pyenv}" "$HOME/.local/share/uv/python" /opt /usr/local; do
            find "$root" -maxdepth 4 -path "*bin/python$version" 2>/dev/null | sort -rV
        done
    fi
}

while IFS= read -r candidate; do
    works "$candidate" && exit 0
done < <(candidates)
echo "no working Python ${version:-$want} found: install it (pyenv, uv, conda or your system's packages) or name one with PYTHON=/path/to/python" >&2
exit 1
