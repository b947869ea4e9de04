# Sourced by walkthrough/run.sh and tests/run.sh: makes sure that the build has what it needs.
#
# need NAME... : each NAME is a package of Debian 12 and Ubuntu 24.04. A package counts as present when what the build
# wants from it is there, wherever it came from; missing ones are installed with apt when that is allowed, otherwise
# the exact command is printed and the script ends with status 1.

say() { printf '\n== %s\n' "$*"; }

# A header in any of the usual include folders.
has_header() {
  local folder
  for folder in /usr/include /usr/local/include "${CONDA_PREFIX:-/nonexistent}/include" /opt/homebrew/include; do
    [ -e "$folder/$1" ] && return 0
  done
  return 1
}

present() {
  case $1 in
    g++) command -v g++ >/dev/null || command -v c++ >/dev/null ;;
    cmake) command -v cmake >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    libeigen3-dev) has_header eigen3/Eigen/Core || has_header Eigen/Core ;;
    nlohmann-json3-dev) has_header nlohmann/json.hpp ;;
    libcli11-dev) has_header CLI/CLI.hpp ;;
    libbenchmark-dev) has_header benchmark/benchmark.h ;;
    doctest-dev) has_header doctest/doctest.h ;;
    doxygen) command -v doxygen >/dev/null ;;
    graphviz) command -v dot >/dev/null ;;
    doxygen-awesome-css) [ -d /usr/share/doxygen-awesome-css ] ;;
    libjs-mathjax) [ -d /usr/share/javascript/mathjax ] ;;
    *) dpkg -s "$1" >/dev/null 2>&1 ;;
  esac
}

# missing NAME... : prints those that are not present.
missing() {
  local name
  for name in "$@"; do present "$name" || printf '%s ' "$name"; done
}

need() {
  local lacking install
  lacking=$(missing "$@")
  [ -z "$lacking" ] && return 0
  install="apt-get update && apt-get install --yes --no-install-recommends $lacking"
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
    say "installing $lacking"
    local as_root=() log
    log=$(mktemp)
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive bash -c "$install" >"$log" 2>&1; then
      [ -z "$(missing "$@")" ] && rm -f "$log" && return 0
    fi
    tail -n 5 "$log" >&2
    echo "installing failed (full output in $log)" >&2
  fi
  printf 'This needs packages that are not here: %s\nInstall them, for example with\n    sudo sh -c "%s"\n' \
    "$lacking" "$install" >&2
  return 1
}

build_packages=(g++ cmake ninja-build libeigen3-dev nlohmann-json3-dev libcli11-dev libbenchmark-dev)
test_packages=(doctest-dev)
docs_packages=(doxygen graphviz doxygen-awesome-css libjs-mathjax)

# configure FOLDER OPTION... : Release build with Ninja.
configure() {
  local folder=$1
  shift
  cmake -S "$root" -B "$folder" -G Ninja "$@"
}

# Ninja's own one-line progress on a terminal; a line every tenth step elsewhere, so that a log shows that it moves.
build() {
  local folder=$1
  shift
  if [ -t 1 ]; then
    cmake --build "$folder" "$@"
  else
    NINJA_STATUS='[%f/%t %es] ' cmake --build "$folder" "$@" | awk '/warning|error|FAILED|note:/ || !/^\[/ || ++n % 10 == 1 {print; fflush()}'
    return "${PIPESTATUS[0]}"
  fi
}
