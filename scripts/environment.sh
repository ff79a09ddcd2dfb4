# Sourced by quickstart.sh, run_tests.sh and .ci/run. PYTHON names the interpreter to build environments from.

say() { printf '\n== %s\n' "$*"; }

# make_environment FOLDER PIP_ARGUMENT..: a virtual environment with these things installed, unless it has them already.
# FOLDER/.installed holds a line for each set of things installed since the requirements last changed.
make_environment() {
    local folder=$1 python=${PYTHON:-python3} requirements stamp kept
    shift
    requirements=$(cat requirements.txt requirements-dev.txt pyproject.toml | cksum)
    stamp="$* $requirements"
    if "$folder/bin/python" -m pip --version > /dev/null 2>&1; then
        if grep -qxF -e "$stamp" "$folder/.installed" 2> /dev/null; then
            say "Environment $folder is complete"
            return
        fi
    else
        if ! command -v "$python" > /dev/null; then
            echo "error: no $python here: name a Python of 3.11 or newer with PYTHON=python3.12 bash $0" >&2
            exit 2
        fi
        if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "error: $python is $("$python" -V 2>&1): Python 3.11 or newer is needed; name one with PYTHON=python3.12 bash $0" >&2
            exit 2
        fi
        "$python" -m venv --clear "$folder" # also what an interrupted call left without pip
    fi
    say "Installing into $folder (PyTorch is large: this may take minutes)"
    kept=$(grep -F -e " $requirements" "$folder/.installed" 2> /dev/null || true)
    printf '%s\n' "$kept" > "$folder/.installed"
    "$folder/bin/python" -m pip install --disable-pip-version-check --quiet "$@"
    printf '%s\n' "$stamp" >> "$folder/.installed"
}
