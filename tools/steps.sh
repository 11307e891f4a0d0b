# shellcheck shell=bash
# Named, timed steps, sourced by the scripts beside it. A step's output passes through as it comes.

step_times=()

# step NAME COMMAND...   If the command fails, the script stops and says which step that was and how long it had run.
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
