"""When a worker requests the next tier: mining (which samples are hard), budget, audits, and how answers are combined.

Used by the edge worker of a joint inference service and by each tier between it and the cloud.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from halimede.api.base import Spec
from halimede.api.mining import AFTER, Mode, check_mining
from halimede.api.podtemplate import may_run_foreign_code
from halimede.api.schema import ObjectName, ValidationRule
from halimede.errors import InvalidFieldError
from halimede.names import check_name

#: the encodings of uploaded samples; as it came: unchanged
UploadEncoding = Literal["as-it-came", "raw", "jpeg", "png"]
#: what is uploaded of a hard frame
UploadContent = Literal["frame", "regions"]
AS_IT_CAME: UploadEncoding = "as-it-came"
#: bounds of ``maxBytes``: below the lower one a JPEG has little more than its tables; the upper one is MQTT's largest
#: packet
LEAST_BYTES, MOST_BYTES = 1024, 268_435_455

#: the largest cost, in the user's unit
MOST_COST = 1e9
#: text of an error: what to write
MIXTURE_FIX = "set calibration (`halimede calibrate` writes one), or leave fusion at cloud"


class ModelRef(Spec, kw_only=True):
    """A Model of the same namespace."""

    name: Annotated[ObjectName, Meta(description="Name of a Model of the same namespace.")]


class Parameter(Spec, kw_only=True):
    """A key and a value, both text."""

    key: Annotated[str, Meta(min_length=1, max_length=128, description="The parameter's name.")]
    value: Annotated[str, Meta(max_length=4096, description="The value: a string, so put numbers in quotes.")]


class HardExampleMining(Spec, kw_only=True):
    """The mining algorithm, such as IBT, CrossEntropy or Margin, and its parameters."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="The algorithm, such as IBT or Margin; or your own, as module:Class or file.py:Class.",
        ),
    ]
    parameters: Annotated[list[Parameter], Meta(max_length=32, description="Parameters of the algorithm.")] = []
    mode: Annotated[
        Mode, Meta(description="Whether it uses the small model's answer, or the sample before any model.")
    ] = AFTER


#: a cost in the user's unit
Price = Annotated[float, Meta(ge=0, le=MOST_COST)]
#: texts of errors: what to write
ERRORS_FIX = "give miss or falseAlarm a cost over 0: if no error costs anything, no sample needs an upload"
BUDGET_FIX = "costs decide how many samples go up: remove targetUploadRatio, or raise costs.upload instead"


#: the rule whose thresholds can be adapted
ADAPTED = "TwoThresholds"
ADAPTIVE_FIX = f"set hardExampleMining to {ADAPTED}, as halimede calibrate --costs writes it, or remove adaptive"


class Costs(Spec, kw_only=True):
    """The costs of a miss, a false alarm and an upload, in any unit that all three have in common."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule("self.miss > 0.0 || (has(self.falseAlarm) && self.falseAlarm > 0.0)", ERRORS_FIX, ".miss"),
    )

    miss: Annotated[
        Price,
        Meta(description="Cost of a positive sample or an object that is not found; without positive, of any error."),
    ]
    false_alarm: Annotated[
        Price | None, Meta(description="Cost of a false positive sample or box. Default: that of a miss.")
    ] = None
    upload: Annotated[Price, Meta(description="Cost of one upload.")]
    adaptive: Annotated[
        bool,
        Meta(description="Adapts both thresholds to the running stream, from uploads and audits (TwoThresholds only)."),
    ] = False
    positive: Annotated[
        str, Meta(max_length=256, description="The class to find. Default: any wrong class counts as a miss.")
    ] = ""

    @property
    def alarm(self) -> float:
        """The cost of a false alarm: its own, else that of a miss."""
        return self.miss if self.false_alarm is None else self.false_alarm


class Deferral(Spec, kw_only=True):
    """Which samples go on to the next tier, how many at most, and what is made of two answers."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "!has(self.fusion) || self.fusion != 'mixture' || has(self.calibration)", MIXTURE_FIX, ".fusion"
        ),
        ValidationRule("!has(self.costs) || !has(self.targetUploadRatio)", BUDGET_FIX, ".targetUploadRatio"),
        ValidationRule(
            "!has(self.costs) || !has(self.costs.adaptive) || !self.costs.adaptive"
            f" || self.hardExampleMining.name == '{ADAPTED}'",
            ADAPTIVE_FIX,
            ".costs",
        ),
    )

    hard_example_mining: Annotated[HardExampleMining, Meta(description="The algorithm that finds hard samples.")]
    calibration: Annotated[
        ModelRef | None, Meta(description="The Model with the file of halimede calibrate; its format is calibration.")
    ] = None
    target_upload_ratio: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Share of samples to upload in the long run, also after drift. Default: the rule decides."),
    ] = None
    costs: Annotated[
        Costs | None,
        Meta(description="Costs of errors and uploads: halimede calibrate looks for the least sum of them."),
    ] = None
    audit_share: Annotated[
        float, Meta(ge=0, le=1, description="Share of easy samples to upload as well, to measure the edge's accuracy.")
    ] = 0.0
    fusion: Annotated[
        Literal["cloud", "mixture"],
        Meta(description="The final answer if both models answered: the big model's, or a calibrated mixture."),
    ] = "cloud"
    encoding: Annotated[
        UploadEncoding, Meta(description="The encoding of uploads: unchanged, or all raw, JPEG or PNG.")
    ] = AS_IT_CAME
    max_bytes: Annotated[
        Annotated[int, Meta(ge=LEAST_BYTES, le=MOST_BYTES)] | None,
        Meta(description="Maximum bytes of an upload: larger samples become JPEG, or smaller pictures."),
    ] = None


def check_deferral(at: str, deferral: Deferral) -> None:
    """Check calibration, fusion and costs of a worker at the path ``at``. Raises InvalidFieldError."""
    if deferral.calibration:
        check_name(f"{at}.calibration.name", deferral.calibration.name)
    elif deferral.fusion == "mixture":
        raise InvalidFieldError(f"{at}.fusion", deferral.fusion, MIXTURE_FIX)
    if deferral.costs:
        check_costs(f"{at}.costs", deferral.costs)
        if deferral.target_upload_ratio is not None:
            raise InvalidFieldError(f"{at}.targetUploadRatio", deferral.target_upload_ratio, BUDGET_FIX)
        if deferral.costs.adaptive and deferral.hard_example_mining.name != ADAPTED:
            raise InvalidFieldError(f"{at}.costs", "adaptive", ADAPTIVE_FIX)


def check_costs(at: str, costs: Costs) -> None:
    """Refuse costs at the path ``at`` with which no error costs anything. Raises InvalidFieldError."""
    if not costs.miss and not costs.alarm:
        raise InvalidFieldError(f"{at}.miss", costs.miss, ERRORS_FIX)


def admit_deferral(at: str, deferral: Deferral, template: dict[str, Any]) -> None:
    """Check the mining of a worker at the path ``at``, as the worker of this pod template does.

    Raises InvalidFieldError.
    """
    mining = deferral.hard_example_mining
    check_mining(
        f"{at}.hardExampleMining",
        mining.name,
        {parameter.key: parameter.value for parameter in mining.parameters},
        mining.mode,
        own=may_run_foreign_code(template),
        calibrated=deferral.calibration is not None,
    )
