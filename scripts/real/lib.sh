# Shared by the scripts that use published servers and clients: folders, checks, the gateway.
# shellcheck shell=bash

cache="${REAL_SERVERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/toolcrib-real-servers}"
real="$PWD/scripts/real"
work="$(mktemp -d)"
export TOOLCRIB_HOME="$work/home"
gateway=""
started=()
failed=0

finish() {
    local pid
    for pid in "$gateway" "${started[@]}"; do
        [[ -n "$pid" ]] || continue
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT

good() { printf '✓ %s\n' "$1"; }
bad() {
    printf '✗ %s\n' "$1"
    failed=1
}

# Prints the first line of $1 that matches $2, trimmed and shortened.
glimpse() {
    local line
    line="$(grep -Em1 -- "$2" <<<"$1" | tr -d '\r')"
    line="${line#"${line%%[![:space:]]*}"}"
    if ((${#line} > 110)); then
        line="${line:0:109}…"
    fi
    printf '%s' "$line"
}

# check NAME WANTED COMMAND…: the command must succeed with output that matches WANTED; `last` holds the output.
check() {
    local name="$1" wanted="$2" patience=(timeout 120)
    shift 2
    if declare -F "$1" >/dev/null; then
        patience=()
    fi
    if last="$("${patience[@]}" "$@" 2>"$work/stderr" </dev/null)" && grep -Eq -- "$wanted" <<<"$last"; then
        good "$name: $(glimpse "$last" "$wanted")"
    else
        bad "$name, wanted /$wanted/"
        printf '%s\n' "${last:-}" | head -n 5 | cut -c 1-300 | sed 's/^/    /'
        tail -n 5 "$work/stderr" | cut -c 1-300 | sed 's/^/    /'
    fi
}

# tell WHERE COMMAND…: the command prints one line with ✓ or ✗ per check, and exits 0 only if all pass.
tell() {
    local where="$1"
    shift
    if ! timeout 180 "$@" 2>"$work/stderr" | sed "s|^\([✓✗]\) |\1 $where, |"; then
        bad "$where: some checks failed"
        tail -n 8 "$work/stderr" | cut -c 1-300 | sed 's/^/    /'
    fi
}

# said FILE PATTERN: waits until a line of FILE matches, and sets `found` to the pattern's group.
said() {
    found=
    for _ in $(seq 400); do
        # The program in the background may not have created the file yet.
        [[ -e "$1" ]] && found="$(sed -nE "s|.*$2.*|\1|p" "$1" | head -n 1)"
        [[ -n "$found" ]] && return
        sleep 0.05
    done
    printf 'timeout waiting for %s:\n' "$2" >&2
    cat "$1" >&2
    exit 1
}

find_program() {
    if [[ -z "${TOOLCRIB:-}" ]]; then
        cargo build --release --quiet
        TOOLCRIB="$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/toolcrib"
    fi
    toolcrib="$(cd "$(dirname "$TOOLCRIB")" && pwd)/$(basename "$TOOLCRIB")"
}

start_gateway() {
    # The file must exist before it is read, also if the gateway starts late.
    : >"$work/serve"
    "$toolcrib" serve --listen 127.0.0.1:0 2>"$work/serve" &
    gateway=$!
    said "$work/serve" '^listening on (http.*)'
    url="$found"
}

# Prints all descendants of process $1.
below() {
    local child
    for child in $(pgrep -P "$1" || true); do
        printf '%s\n' "$child"
        below "$child"
    done
}

# Stops the gateway; it must exit 0 and leave no process.
stop_gateway() {
    local family child left=0
    family="$(below "$gateway")"
    kill "$gateway"
    if wait "$gateway"; then
        good "the gateway stopped"
    else
        bad "the gateway did not stop cleanly: exit $?"
    fi
    gateway=""
    for child in $family; do
        # A zombie that waits for its new parent does not count.
        if ps -o stat= -p "$child" | grep -qv '^Z'; then
            bad "process $child is left: $(ps -o stat=,args= -p "$child")"
            left=1
        fi
    done
    if ((left == 0)); then
        good "none of its $(wc -w <<<"$family") processes is left"
    fi
}

# Prints a free port. Another process could take it before it is used.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# The official everything server over HTTP: everything_at NAME MODE sets `found` to its port.
everything_at() {
    local name="$1" mode="$2" port
    port="$(free_port)"
    PORT="$port" node "$cache/node/node_modules/@modelcontextprotocol/server-everything/dist/index.js" "$mode" \
        >"$work/$name" 2>&1 &
    started+=($!)
    said "$work/$name" "on port ($port)"
}
