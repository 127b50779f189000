# Helpers shared by the scripts in this folder; sourced, not run. Expects $root = the repository.
# shellcheck shell=sh disable=SC2154

say() { printf '%s\n' "$*" >&2; }
die() {
  say "${0##*/}: $*"
  exit 1
}

# Parallel compile jobs: one per processor, but no more than the free memory allows (about 1.5 GiB each).
build_jobs() {
  processors=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
  free_kib=$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo 2>/dev/null)
  by_memory=$((${free_kib:-3145728} / 1572864))
  [ "$by_memory" -ge 1 ] || by_memory=1
  if [ "$processors" -lt "$by_memory" ]; then echo "$processors"; else echo "$by_memory"; fi
}

# build_quietly BUILD_DIR LOG WHAT TARGET...: ninja with its output in LOG. A terminal sees one progress line; on
# failure the end of the log is shown.
build_quietly() {
  dir=$1 log=$2 what=$3
  shift 3
  : >"$log"
  ninja -C "$dir" -j "$(build_jobs)" "$@" >"$log" 2>&1 </dev/null &
  build_pid=$!
  trap 'kill "$build_pid" 2>/dev/null; say ""; say "stopped; run the same command to go on"; exit 130' INT TERM
  announced=
  while kill -0 "$build_pid" 2>/dev/null; do
    # Silent while there is nothing to compile.
    if [ -t 2 ]; then
      step=$(tail -n 1 "$log" | sed -n 's/^\(\[[0-9]*\/[0-9]*\]\).*/\1/p')
      [ -z "$step" ] || { printf '\rbuilding %s %s ' "$what" "$step" >&2; announced=yes; }
    elif [ -z "$announced" ] && grep -q '^\[[0-9]*/[0-9]*\] Building' "$log"; then
      say "building $what (log: $log)"
      announced=yes
    fi
    sleep 0.2
  done
  status=0
  wait "$build_pid" || status=$?
  trap - INT TERM
  if [ -t 2 ] && [ -n "$announced" ]; then printf '\r%60s\r' '' >&2; fi
  if [ "$status" -ne 0 ]; then
    tail -n 40 "$log" >&2
    die "the build failed; the whole log is in $log"
  fi
}

# configure_quietly LOG CMAKE_ARGUMENT...: runs cmake in the repository; output is shown only on failure.
configure_quietly() {
  log=$1
  shift
  mkdir -p "$(dirname -- "$log")"
  if ! (cd -- "$root" && cmake "$@") >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "cmake could not configure the build; the whole log is in $log"
  fi
}
