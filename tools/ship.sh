# shellcheck shell=bash
# What is shipped: four programs without their debug information, which is kept apart. Sourced by build and release.

# The runner is copied into a volume in memory of every pod. Decision 46 has the sizes.
runner_bytes_max=3100000

# name_linker TRIPLE   Cargo links with the native compiler unless it is told. The crates with C code in them find the cross compiler by themselves.
name_linker() {
  [ "$1" != "$(host_triple)" ] || return 0
  local name=${1//-/_}
  export "CARGO_TARGET_${name^^}_LINKER=$(of_triple "$1" cc gcc)"
}

# build_runner [TRIPLE]   Sets $runner. It is static, because the same file is injected into users' images with an unknown libc. That
# needs the C library's archive, which some distributions package apart from gcc. Fails with 2 if it is not there.
build_runner() {
  local triple=${1:-$(host_triple)} cc
  cc=$(of_triple "$triple" "${CC:-cc}" gcc)
  [ -e "$("$cc" -print-file-name=libc.a)" ] || return 2
  name_linker "$triple"
  runner=${CARGO_TARGET_DIR:-target}/$triple/runner/muster-runner
  RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
    cargo build -p muster-runner --bin muster-runner --profile runner --locked --target "$triple" || return 1
}

# ship FOLDER [TRIPLE] PROGRAM   Puts the program into the folder, and its debug information into .debug there, where debuggers and the
# program's own backtraces find it. A daemon that still executes the old file is not disturbed.
ship() {
  local folder=$1 triple=$2 program=$3 objcopy debug
  objcopy=$(of_triple "$triple" "${OBJCOPY:-objcopy}" objcopy)
  debug=$folder/.debug/$(basename "$program").debug
  # Joined, because the shell does not stop at an error within a step.
  mkdir -p "$folder/.debug" &&
    "$objcopy" --only-keep-debug "$program" "$debug.new" &&
    chmod a-x "$debug.new" &&
    mv -f "$debug.new" "$debug" &&
    "$objcopy" --strip-all --add-gnu-debuglink="$debug" "$program" "$folder/.new" &&
    mv -f "$folder/.new" "$folder/$(basename "$program")"
}

# hold_runner_size FILE   Fails if the runner has outgrown its limit.
hold_runner_size() {
  local bytes
  bytes=$(stat -c %s "$1")
  if [ "$bytes" -gt "$runner_bytes_max" ]; then
    echo "the runner has $bytes bytes, more than $runner_bytes_max (tools/ship.sh says why that is a limit)" >&2
    return 1
  fi
}

host_triple() { rustc -vV | sed -n 's/^host: //p'; }

# of_triple TRIPLE NATIVE TOOL   The tool for this platform: the native one, or the cross tool by the name that distributions give it.
of_triple() {
  if [ "$1" = "$(host_triple)" ]; then printf '%s\n' "$2"; else printf '%s-linux-gnu-%s\n' "${1%%-*}" "$3"; fi
}
