# What the scripts share: where things are, how they speak, and the build. Sourced, never run.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# The one libtorch that tch 0.24 fits.
torch_version=2.11.0

say() { printf '%s\n' "$*" >&2; }

# One line that says what is wrong, then, where there is something to do, one that says what.
fail() {
  say "error: $1"
  if [ $# -gt 1 ]; then
    say
    say "hint: $2"
  fi
  exit 2
}

# The version of the libtorch in a folder, without the build suffix (`+cu130`); empty when it does not say.
libtorch_version() {
  local found=
  if [ -f "$1/build-version" ]; then
    found=$(head -n 1 "$1/build-version")
  elif [ -f "$1/version.py" ]; then
    found=$(sed -n "s/^__version__ = '\([^']*\)'.*/\1/p" "$1/version.py")
  fi
  printf '%s' "${found%%+*}"
}

# Where cargo puts what it builds, whatever the user's configuration says.
target_dir() {
  (cd "$root" && cargo metadata --no-deps --format-version 1) |
    sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

# Builds both binaries in the release profile: with cargo's progress when something changed, in silence when not.
# Sets `bin` to the folder they are in. cargo runs in the root, where `.cargo/config.toml` is found.
build() {
  local marker newer=yes quiet=()
  bin=$(target_dir)/release
  marker=$bin/.built-by-scripts
  if [ -f "$marker" ]; then
    newer=$(cd "$root" && find src Cargo.toml Cargo.lock .cargo -newer "$marker" 2>/dev/null | head -n 1)
  fi
  if [ -z "$newer" ]; then
    quiet=(--quiet)
  elif [ ! -x "$bin/inspect-torch" ]; then
    say "building inspect and its engine: about eight minutes the first time on two cores"
  fi
  (cd "$root" && cargo build --release "${quiet[@]+"${quiet[@]}"}" >&2) ||
    fail "the build failed" "cargo's own messages are above"
  touch "$marker"
}
