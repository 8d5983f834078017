"""The Python files that the spec of a service names: a worker that imports one must be replaced after an edit.

Modules that those files import are not named, and not among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from halimede.api.mining import rule_file
from halimede.api.multiedge import MultiEdgeInferenceServiceSpec
from halimede.api.placement import Placement

#: the most files of one worker; commands have a few words
MAX_CODE_FILES = 16
#: the module of a user's class or object, as in ``own:Estimator``
MODULE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*):[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)


def code_files(spec: Any, placement: Placement) -> tuple[str, ...]:
    """Return the absolute paths of the Python files that a worker's spec names, whether they exist or not.

    These are the file of its mining rule, scripts in its command, and in its ``workingDir`` the modules of its rule, of
    its application and of its estimator.
    """
    return tuple(sorted(set(_paths(spec, placement))))[:MAX_CODE_FILES]


def _paths(spec: Any, placement: Placement) -> Iterator[str]:
    container = placement.pod.containers[0]
    if rule := rule_file(placement.rule):
        yield rule
    folder = PurePosixPath(container.working_dir)
    scripts = [argument for argument in (*container.command, *container.args) if argument.endswith(".py")]
    entries = [placement.rule] if not rule else []
    entries += [variable.value for variable in container.env if variable.name == "ESTIMATOR"]
    if isinstance(spec, MultiEdgeInferenceServiceSpec):
        entries.append(spec.application.entry)
    modules = filter(None, map(MODULE.fullmatch, entries))
    for script in (*scripts, *(f"{module[1].replace('.', '/')}.py" for module in modules)):
        path = folder / script
        if path.is_absolute() and "\0" not in script and ".." not in path.parts:
            yield str(path)
