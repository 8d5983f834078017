"""Joint inference: a small model here, and the big model of the same service's cloud workers."""

from halimede.compat.sedna.core.joint_inference.joint_inference import (
    BigModelService,
    JointInference,
    TSBigModelService,
)

__all__ = ("BigModelService", "JointInference", "TSBigModelService")
