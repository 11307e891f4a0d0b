# shellcheck shell=bash
# Sourced by the scripts beside it: named, timed steps. Everything a step prints goes through as it comes.

step_times=()

# step NAME COMMAND...   stops the script where the command fails, and says which step that was and how long it had run.
step() {
  local name=$1 began=$SECONDS
  shift
  printf '\n==> %s\n' "$name"
  if ! "$@"; then
    printf '==> %s: FAILED after %d s\n' "$name" $((SECONDS - began)) >&2
    exit 1
  fi
  step_times+=("$(printf '%5d s  %s' $((SECONDS - began)) "$name")")
}

print_step_times() { printf '%s\n' "${step_times[@]}"; }
