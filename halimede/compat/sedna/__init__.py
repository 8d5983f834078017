"""Sedna's SDK over our bus: what a script written for Sedna imports, under Sedna's own module paths.

``from sedna.core.joint_inference import JointInference`` becomes
``from halimede.compat.sedna.core.joint_inference import JointInference``, or nothing changes at all:
``python -m halimede.compat.sedna script.py`` lets an untouched script find this package as ``sedna``.

What works, what differs and what is not there is in docs/sedna.md. No code of Sedna is in here.
"""
