"""Multi-edge inference: a graph of stages over several edge nodes (seed 000).

``stage.py`` is what an application is made of, ``application.py`` how it is put together and found by its name. The
rest runs it: stages where a frame came in or at a peer with room (``balance``), and where findings of several workers
come together (``joining``).
"""

from halimede.multiedge.application import Application, create, register
from halimede.multiedge.stage import Finding, Item, Joint, JointTools, Outcome, Parameters, Stage, Tools

__all__ = [
    "Application",
    "Finding",
    "Item",
    "Joint",
    "JointTools",
    "Outcome",
    "Parameters",
    "Stage",
    "Tools",
    "create",
    "register",
]
