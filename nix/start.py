"""Starts the qualify command from the Nix store; @project@ is replaced when it is built."""

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
project = Path("@project@")
for name in ("PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP"):
    os.environ.pop(name, None)
# Children are started with the same interpreter and must find the same code.
os.environ.update(
    PYTHONDONTWRITEBYTECODE="1",
    PYTHONNOUSERSITE="1",
    PYTHONPATH=str(project / "src"),
)
here = Path.cwd()
if "QUALIFY_PROJECT" not in os.environ and not any(
    (folder / "manifests").is_dir() for folder in (here, *here.parents)
):
    # Outside any project the declarations that came with this command are the ones meant, and
    # evidence goes to the user's own folder: the store cannot be written.
    os.environ["QUALIFY_PROJECT"] = str(project)
    data = os.environ.get("XDG_DATA_HOME", "")
    home = Path(data) if data.startswith("/") else Path.home() / ".local/share"
    os.environ.setdefault("QUALIFY_RESULTS", str(home / "qualify/results"))
sys.path.insert(0, str(project / "src"))

from qualify.cli import main  # noqa: E402

sys.exit(main())
