"""Takes the right to write files and to use TCP from a thread, and from all threads and processes that it starts later.

Landlock is a part of Linux since 5.13 (TCP since 6.7) that needs no privilege. What is taken cannot be given back.
Files that are open already stay usable, and so does ``/dev/null``.
"""

from __future__ import annotations

import ctypes
import os
import struct

#: option of prctl(2) that Landlock requires
PR_SET_NO_NEW_PRIVS = 38
#: numbers of the system calls, equal on all architectures
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
#: flag of CREATE_RULESET that returns the version; type of a rule for a folder or file
ASK_VERSION, PATH_BENEATH = 1, 1
#: the right to write a file
WRITE_FILE = 1 << 1
#: with the rights to remove folders and files, and to make devices, folders, files, sockets, pipes and links
WRITES = WRITE_FILE | sum(1 << bit for bit in range(4, 13))
#: rights that later versions added: link between folders (2), truncate (3); bind and connect TCP (4)
REFER, TRUNCATE, TCP = 1 << 13, 1 << 14, 3

_libc = ctypes.CDLL(None)


def forbid_writing() -> None:
    """Take the rights to write files and to use TCP from the calling thread, as the first lines of the module say.

    As far as the kernel's version of Landlock can; nothing without it. Raises nothing if the kernel refuses.
    """
    version = _libc.syscall(CREATE_RULESET, None, 0, ASK_VERSION)
    if version < 1:
        return
    files = WRITES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    # the field for TCP exists since version 4
    ruleset = struct.pack("=QQ", files, TCP) if version >= 4 else struct.pack("=Q", files)
    rules = _libc.syscall(CREATE_RULESET, ruleset, len(ruleset), 0)
    if rules < 0:
        return
    try:
        null_device = os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = struct.pack("=Qi", WRITE_FILE | (files & TRUNCATE), null_device)
            _libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0)
        finally:
            os.close(null_device)
        _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _libc.syscall(RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
