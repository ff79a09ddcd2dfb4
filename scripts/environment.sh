# Sourced by quickstart.sh, run_tests.sh and .ci/run. PYTHON names the interpreter to build environments from.

say() { printf '\n== %s\n' "$*"; }

# make_environment FOLDER PIP_ARGUMENT..: a virtual environment with these things installed, unless it has them already.
make_environment() {
    local folder=$1 stamp
    shift
    stamp="$* $(cat requirements.txt requirements-dev.txt pyproject.toml | cksum)"
    if [ "$(cat "$folder/.installed" 2>/dev/null)" = "$stamp" ]; then
        say "Environment $folder is complete"
        return
    fi
    if ! "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "error: ${PYTHON:-python3} is $("${PYTHON:-python3}" -V 2>&1): Python 3.11 or newer is needed; name one with PYTHON=python3.12 bash $0" >&2
        exit 2
    fi
    say "Making the environment $folder (PyTorch is large: this may take minutes)"
    [ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
    "$folder/bin/python" -m pip install --disable-pip-version-check --quiet "$@"
    printf '%s' "$stamp" > "$folder/.installed"
}
