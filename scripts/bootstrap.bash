# shellcheck shell=bash
# Sets up the virtual environment that ./qualify and ./test run in. Sourced, never executed.
#
# Promises: the first call installs exactly what locks/requirements/SET.txt pins, every file checked
# against its SHA-256, and compiles the bytecode; later calls cost one sha256sum. Two calls at once
# wait for each other. A set-up that was interrupted, or whose locks have changed, is made anew: the
# stamp is the last thing written.
# Never: touches a folder it did not make, changes the caller's folder, writes outside the virtual
# environment (and uv's own cache), or names an index. Where packages come from is what the
# machine's pip is set to; uv is told the same through its environment.
#
# Environment:
#   QUALIFY_VENV  where the virtual environment lies (default: .venv in the project)
#   PYENV_ROOT    where pyenv keeps its Pythons (default: ~/.pyenv)
#   QUALIFY_BYTECODE=lazy  compile nothing ahead; Python then does it at the first import (for tests)

qualify_pythons=(3.13 3.12 3.14) # those the locks cover, the best tested first
qualify_stamp_version=1

bootstrap_fail() { # EXIT-CODE LINE...
  local code=$1
  shift
  [[ -t 2 ]] && printf '\r\e[K' >&2
  printf 'qualify: %s\n' "$@" >&2
  exit "$code"
}

bootstrap_progress() { # TEXT
  # One line: rewritten on a terminal, otherwise printed once.
  if [[ -t 2 ]]; then
    printf '\r\e[Kqualify: setting up, once: %s' "$1" >&2
  elif [[ -z ${qualify_announced:-} ]]; then
    printf 'qualify: setting up, once (a minute or two): %s\n' "$1" >&2
  fi
  qualify_announced=1
}

# Sets qualify_root, qualify_venv and qualify_python and the environment that Python is to run in.
bootstrap() { # ROOT SET...
  qualify_root=$1
  shift
  qualify_sets=(bootstrap "$@")
  qualify_venv=${QUALIFY_VENV:-$qualify_root/.venv}
  [[ $qualify_venv == /* ]] || qualify_venv=$PWD/$qualify_venv
  qualify_python=$qualify_venv/bin/python
  unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE PYTHONSTARTUP SOURCE_DATE_EPOCH
  export PYTHONPYCACHEPREFIX=$qualify_venv/pycache PYTHONNOUSERSITE=1
  bootstrap_digests
  bootstrap_ready && return
  command -v flock >/dev/null || bootstrap_fail 2 "the command flock is missing; install util-linux"
  mkdir -p -- "${qualify_venv%/*}" 2>/dev/null || true
  { : >>"$qualify_venv.lock"; } 2>/dev/null ||
    bootstrap_fail 2 "cannot write $qualify_venv.lock" "make the folder writable, or set QUALIFY_VENV to another place"
  (
    if ! flock -n 9; then
      bootstrap_progress "another process is at it, waiting"
      flock 9
    fi
    bootstrap_ready || bootstrap_install
  ) 9>>"$qualify_venv.lock" || exit $?
  if [[ -t 2 ]]; then printf '\r\e[K' >&2; fi
}

# Prints the Python of a further environment, made like the first; the caller's stays as it is.
bootstrap_python() { # ROOT SET...
  (bootstrap "$@" >&2 && printf '%s\n' "$qualify_python")
}

# Installs what the tests need of the system: Debian packages as root, else says what is missing.
bootstrap_programs() { # PROGRAM=PACKAGE...
  local pair missing=() log=$qualify_venv/system.log
  for pair in "$@"; do
    command -v -- "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    bootstrap_fail 2 "the tests need ${missing[*]}; install with your distribution's package manager"
  fi
  bootstrap_progress "installing ${missing[*]}"
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null || bootstrap_fail 2 "${missing[*]} could not be installed; see $log"
}

# What the stamp must say: the place (scripts hold it as an absolute path) and the digest of each set.
bootstrap_digests() {
  local set files=()
  for set in "${qualify_sets[@]}"; do files+=("$set.txt"); done
  qualify_wanted=$(cd -- "$qualify_root/locks/requirements" && exec sha256sum -- "${files[@]}") ||
    bootstrap_fail 1 "the requirements files in $qualify_root/locks/requirements are missing or unreadable"
}

bootstrap_ready() { # true when every wanted set is installed as its lock says
  [[ -x $qualify_python && -r $qualify_venv/qualify-stamp ]] || return 1
  local line stamp installed
  mapfile -t stamp <"$qualify_venv/qualify-stamp"
  [[ ${stamp[0]-} == "qualify $qualify_stamp_version" && ${stamp[1]-} == "$qualify_venv" ]] || return 1
  printf -v installed '\n%s' "${stamp[@]:2}"
  while read -r line; do
    [[ $installed$'\n' == *$'\n'"$line"$'\n'* ]] || return 1
  done <<<"$qualify_wanted"
}

# Prints the real path of a Python that the locks cover; fails when there is none.
bootstrap_find_python() {
  local minor candidate found
  local -a candidates=()
  for minor in "${qualify_pythons[@]}"; do candidates+=("python$minor"); done
  candidates+=(python3)
  for minor in "${qualify_pythons[@]}"; do
    for candidate in "${PYENV_ROOT:-${HOME-}/.pyenv}"/versions/"$minor"*/bin/python3; do
      candidates+=("$candidate")
    done
  done
  for candidate in "${candidates[@]}"; do
    bootstrap_accepts "$candidate" && return
  done
  if command -v uv >/dev/null; then
    for minor in "${qualify_pythons[@]}"; do
      found=$(cd / && UV_PYTHON_DOWNLOADS=never uv python find "$minor" 2>/dev/null) || continue
      bootstrap_accepts "$found" && return
    done
  fi
  return 1
}

bootstrap_accepts() { # CANDIDATE: prints its real path when it can serve (a pyenv shim may exist and not run)
  command -v -- "$1" >/dev/null || return 1
  (cd / && exec "$1" -I -c '
import os, sys, venv
executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
covered = sys.argv[1].split()
if "%d.%d" % sys.version_info[:2] not in covered or sys.implementation.name != "cpython":
    raise SystemExit(1)
print(executable)' "${qualify_pythons[*]}" 2>/dev/null)
}

bootstrap_install() {
  local python log=$qualify_venv/setup.log set
  if [[ ${OSTYPE-} != linux-gnu* || ${HOSTTYPE-} != x86_64 ]]; then
    bootstrap_fail 2 "the locks cover Linux with glibc on x86_64, not ${OSTYPE-} on ${HOSTTYPE-}"
  fi
  if [[ -e $qualify_venv && ! -e $qualify_venv/qualify-made-this ]] &&
    ! rmdir -- "$qualify_venv" 2>/dev/null; then
    bootstrap_fail 2 "$qualify_venv exists and was not made by this script" \
      "remove it, or set QUALIFY_VENV to another place"
  fi
  local -a wanted=("${qualify_sets[@]:1}") kept=()
  if bootstrap_same_base; then
    # Everything installed is current: only further sets are wanted.
    python=$qualify_python
  else
    python=$(bootstrap_find_python) || bootstrap_fail 2 \
      "no Python ${qualify_pythons[*]} found on PATH, in ${PYENV_ROOT:-~/.pyenv} or by uv" \
      "install one: the python3.13 or python3.12 package (with its venv package) of your distribution," \
      "or \`pyenv install 3.13\`, or \`uv python install 3.13\`; then start this again"
    bootstrap_empty
  fi
  mapfile -t kept < <(bootstrap_kept)
  mkdir -p -- "$qualify_venv" && : >"$qualify_venv/qualify-made-this" ||
    bootstrap_fail 2 "cannot write to $qualify_venv" "free some space or set QUALIFY_VENV to another place"
  rm -f -- "$qualify_venv/qualify-stamp"
  cd -- "$qualify_root" # an installer must not read settings from the caller's folder
  if [[ $python != "$qualify_python" ]]; then
    bootstrap_progress "a virtual environment with $python"
    bootstrap_venv "$python" >>"$log" 2>&1 || bootstrap_give_up "$log" "making the virtual environment"
    bootstrap_pip -r locks/requirements/bootstrap.txt >>"$log" 2>&1 ||
      bootstrap_give_up "$log" "fetching the installer with pip"
  fi
  local -a files=()
  for set in "${wanted[@]}"; do files+=(-r "locks/requirements/$set.txt"); done
  bootstrap_progress "the packages of ${wanted[*]}"
  bootstrap_uv "${files[@]}" >>"$log" 2>&1 || {
    echo "uv failed; trying pip" >>"$log"
    bootstrap_progress "the packages of ${wanted[*]}, with pip"
    bootstrap_pip "${files[@]}" >>"$log" 2>&1 || bootstrap_give_up "$log" "installing the packages"
  }
  bootstrap_project || bootstrap_give_up "$log" "linking the project"
  bootstrap_progress "bytecode"
  bootstrap_compile >>"$log" 2>&1
  {
    printf '%s\n' "qualify $qualify_stamp_version" "$qualify_venv" "$qualify_wanted" "${kept[@]}"
  } >"$qualify_venv/qualify-stamp.new" &&
    mv -f -- "$qualify_venv/qualify-stamp.new" "$qualify_venv/qualify-stamp" ||
    bootstrap_give_up "$log" "writing the stamp"
}

# Removes what an earlier set-up left, but never the mark that says the folder is ours: interrupted
# here, the next call must still know it.
bootstrap_empty() {
  local entry
  rm -f -- "$qualify_venv/qualify-stamp"
  shopt -s dotglob nullglob
  for entry in "$qualify_venv"/*; do
    [[ $entry == */qualify-made-this ]] || rm -rf -- "$entry"
  done
  shopt -u dotglob nullglob
}

bootstrap_give_up() { # LOG STEP
  tail -n 15 -- "$1" >&2
  bootstrap_fail 1 "$2 failed; the whole log is $1" \
    "check that pip on this machine reaches its index (\`pip download --no-deps uv\`), then start this again"
}

# True when the environment is whole and everything in it is still what the locks say.
bootstrap_same_base() {
  local qualify_sets=() qualify_wanted=() stamp set
  [[ -r $qualify_venv/qualify-stamp ]] || return 1
  mapfile -t stamp <"$qualify_venv/qualify-stamp"
  for set in "${stamp[@]:2}"; do
    set=${set##* }
    [[ -f $qualify_root/locks/requirements/$set ]] || return 1
    qualify_sets+=("${set%.txt}")
  done
  ((${#qualify_sets[@]})) || return 1
  bootstrap_digests
  bootstrap_ready
}

# The lines of the present stamp for sets that are not wanted now: they stay installed.
bootstrap_kept() {
  [[ -r $qualify_venv/qualify-stamp ]] || return 0
  local line
  while read -r line; do
    [[ $'\n'$qualify_wanted$'\n' == *$'\n'"$line"$'\n'* ]] || printf '%s\n' "$line"
  done < <(tail -n +3 -- "$qualify_venv/qualify-stamp")
}

bootstrap_venv() { # PYTHON
  "$1" -m venv -- "$qualify_venv" && return
  echo "the venv module failed (distributions package it apart); trying uv"
  command -v uv >/dev/null && uv venv --quiet --allow-existing --seed --python "$1" "$qualify_venv"
}

bootstrap_pip() { # REQUIREMENT-OPTION...
  PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "$qualify_python" -m pip install \
    -qq --no-deps --require-hashes --no-build-isolation --no-compile "$@"
}

bootstrap_uv() { # REQUIREMENT-OPTION...
  [[ -x $qualify_venv/bin/uv ]] || return 1
  local setting name
  (
    while IFS= read -r -d '' setting; do
      # What the user told uv itself goes before what pip is set to.
      name=${setting%%=*}
      [[ -n ${!name-} ]] || export "${setting?}"
    done < <("$qualify_python" -P scripts/index_settings.py)
    # As pip does: the best file of all indexes. Safe, because each must have the pinned hash.
    export UV_INDEX_STRATEGY=unsafe-best-match UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
    exec "$qualify_venv/bin/uv" pip install --quiet --python "$qualify_python" \
      --no-deps --require-hashes --no-build-isolation "$@"
  )
}

# The project needs no build: a .pth file makes src/ importable, and the script starts it.
bootstrap_project() {
  local site
  site=$("$qualify_python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
  printf '%s\n' "$qualify_root/src" >"$site/qualify.pth" || return 1
  printf '#!/bin/sh\nexec "$(dirname -- "$0")/python" -P -m qualify "$@"\n' >"$qualify_venv/bin/qualify" &&
    chmod +x -- "$qualify_venv/bin/qualify"
}

# Compiles ahead what a run imports. Python looks for bytecode only under PYTHONPYCACHEPREFIX, also for
# its own library. What is left out here (six tenths of the packages' code: tests, servers and clients
# that the agent SDK brings along and we do not start) is compiled when something first imports it.
qualify_seldom='/(site-packages|python3\.[0-9]+)/(.*/)?(tests?|idlelib|tkinter|turtledemo|lib2to3|ensurepip|pydoc_data|litellm/proxy|pip|setuptools'
qualify_seldom+='|google|anthropic|groq|huggingface_hub|reportlab|redis|fakeredis|browser_use|browser_use_sdk'
qualify_seldom+='|posthog|pypdf|lmnr|dns|cdp_use|rich_rst|cyclopts|pyasn1_modules|docx|wcwidth|prompt_toolkit'
qualify_seldom+='|pygments/(lexers|styles))/'

bootstrap_compile() {
  local stdlib site
  [[ ${QUALIFY_BYTECODE-} == lazy ]] && return
  { read -r stdlib && read -r site; } < <("$qualify_python" -I -c \
    'import sysconfig; print(sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sep="\n")')
  "$qualify_python" -m compileall -q -j 0 -x "$qualify_seldom|/site-packages/" "$stdlib"
  "$qualify_python" -m compileall -q -j 0 -x "$qualify_seldom" "$site" "$qualify_root/src"
  return 0
}
