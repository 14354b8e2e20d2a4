#!/usr/bin/env python3
"""What tools/openpi_config.py prints for configs of openpi and for those of own.py, as one JSON object on stdout: by name
the robot, or the sentence that refuses the config. Runs in openpi's environment (tests/scripts/peer/config_peer.sh).

    record.py openpi_config.py openpi|own.py"""
import contextlib
import importlib
import io
import json
import pathlib
import runpy
import sys


def printed(tool, name):
    out = io.StringIO()
    sys.argv = [tool, name]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_path(tool, run_name="__main__")
    except SystemExit as end:
        return {"refused": str(end)}
    return json.loads(out.getvalue())


tool, source = sys.argv[1:]
if source == "openpi":
    names = [config.name for config in importlib.import_module("openpi.training.config")._CONFIGS]
else:
    sys.path.insert(0, str(pathlib.Path(source).parent))
    names = [f"{source}:{config.name}" for config in importlib.import_module(pathlib.Path(source).stem).CONFIGS]
json.dump({name.rpartition(":")[2]: printed(tool, name) for name in names}, sys.stdout, indent=1)
print()
