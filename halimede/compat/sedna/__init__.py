"""Sedna's SDK over halimede's bus, with Sedna's own module paths.

``from sedna.core.joint_inference import JointInference`` becomes ``from halimede.compat.sedna.core.joint_inference
import JointInference``. Without any change, ``python -m halimede.compat.sedna script.py`` lets an untouched script find
this package as ``sedna``.

docs/sedna.md lists what works, what differs and what is missing. This package contains no code of Sedna.
"""
