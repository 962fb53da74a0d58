"""A recipe killed (kill -9) once in each of its stages, and continued to its end by the same command.

    python bench/train_resume.py --out resume.json -- rankwell train recipes/drbert.yaml --set data=FOLDER --out OUT

After the word ``--`` stands any ``rankwell train``. A sitting is killed some seconds after a stage that no sitting was
killed in has begun; the last one runs to its end. Reported: each sitting's seconds and the stage it was killed in.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import make_parser

STAGE = re.compile(r"stage (\d+) of (\d+), (\S+): running")


def sit(command: list[str], killed: set[str], patience: float) -> dict[str, Any]:
    """Run the command, and kill it ``patience`` seconds into the first stage that is not in ``killed``."""
    begin = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert process.stdout is not None
    victim = None
    for line in process.stdout:
        print(line, end="", flush=True)
        found = STAGE.match(line)
        if found and found[3] not in killed:
            victim = found[3]
            time.sleep(patience)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                print(f"-- killed in {victim}", flush=True)
            break
    code = process.wait()
    return {"killed_in": victim if code == -signal.SIGKILL else None, "code": code, "seconds": time.monotonic() - begin}


def main() -> None:
    """Kill and continue."""
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("train_resume.json"))
    parser.add_argument("--patience", type=float, default=20.0, help="seconds into a stage")
    options = parser.parse_args(sys.argv[1:split])
    killed: set[str] = set()
    sittings: list[dict[str, Any]] = []
    while not sittings or sittings[-1]["killed_in"]:
        sittings.append(sit(sys.argv[split + 1 :], killed, options.patience))
        killed.add(str(sittings[-1]["killed_in"]))
        options.out.write_text(json.dumps(sittings, indent=2) + "\n", encoding="utf-8")
    sys.exit(sittings[-1]["code"])


if __name__ == "__main__":
    main()
