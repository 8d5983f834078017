from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from halimede import mining
from halimede.api.mining import BUILT_IN
from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining import create, names, register, registry
from halimede.system.modules import import_siblings

NAME = "spec.edgeWorker.hardExampleMining.name"
PARAMETERS = "spec.edgeWorker.hardExampleMining.parameters"

NEW_ALGORITHM = """
from dataclasses import dataclass
from halimede.mining import register

@register("{name}")
@dataclass
class New:
    level: int = 3

    def __call__(self, prediction):
        return self.level > 2
"""


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch):
    """Undo what a test registers or imports."""
    names()
    monkeypatch.setattr(registry, "_algorithms", dict(registry._algorithms))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith(("halimede.mining.", "plugin_")):
            del sys.modules[name]
    import_siblings.cache_clear()
    registry._load.cache_clear()


class TestNames:
    def test_the_built_in_algorithms_are_listed_in_order(self):
        assert names() == tuple(sorted(BUILT_IN))

    @pytest.mark.parametrize("written", ["IBT", "ibt", "Ibt", "CrossEntropy", "crossentropy", "CLOUDONLY"])
    def test_a_name_is_found_whatever_its_case(self, written):
        assert type(create(written, {})).__name__.lower() == written.lower()

    @pytest.mark.parametrize(
        ("unknown", "hint"),
        [
            *((name, "") for name in ("", "Entropies", "ibt ", "IBT\0", "é", "x" * 5000)),
            ("margn", "did you mean Margin?"),
        ],
    )
    def test_an_unknown_name_is_refused_with_the_possible_ones(self, unknown, hint):
        with pytest.raises(InvalidFieldError) as caught:
            create(unknown, {})
        assert caught.value.field == NAME
        assert all(name in caught.value.fix for name in (hint, *BUILT_IN))

    @pytest.mark.parametrize("taken", ["IBT", "ibt"])
    def test_a_taken_name_is_never_overwritten(self, taken):
        before = type(create("IBT", {}))
        with pytest.raises(ValueError, match="registered twice: IBT holds the name"):
            register(taken)(dataclass(type("Other", (), {"__call__": lambda self, prediction: True})))
        assert type(create("IBT", {})) is before

    def test_an_algorithm_that_is_no_dataclass_is_refused(self):
        with pytest.raises(ValueError, match="no dataclass"):
            register("Plain")(type("Plain", (), {"__call__": lambda self, prediction: True}))


@dataclass
class Typed:
    ratio: Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]
    count: int = 1
    strict: bool = False
    mode: Literal["mean", "max"] = "mean"
    note: str = ""
    limit: int | None = None
    seen: list[Prediction] = field(init=False, default_factory=list)

    def __call__(self, prediction: Prediction, /) -> bool:
        return self.strict


class TestParameters:
    @pytest.fixture(autouse=True)
    def _typed(self, _registry_as_before):
        register("Typed")(Typed)

    @pytest.mark.parametrize(
        ("given", "typed"),
        [
            (
                {"ratio": "1e-1", "count": " 7 ", "strict": "True", "mode": "max", "note": "x", "limit": "3"},
                Typed(ratio=0.1, count=7, strict=True, mode="max", note="x", limit=3),
            ),
            ({"ratio": 0.5, "strict": True}, Typed(ratio=0.5, strict=True)),
            ({"ratio": "1"}, Typed(ratio=1.0)),
        ],
        ids=["all as text", "values that are cast already", "defaults"],
    )
    def test_text_is_cast_to_the_type_of_its_field(self, given, typed):
        assert create("Typed", given) == typed

    def test_a_required_one_is_asked_for(self):
        with pytest.raises(
            InvalidFieldError, match=f"^{PARAMETERS}.ratio: .*it is required: give a number from 0 to 1"
        ):
            create("Typed", {})

    @pytest.mark.parametrize(
        ("key", "text", "fix"),
        [
            ("ratio", "nan", "give a number from 0 to 1"),
            ("ratio", "1.01", "give a number from 0 to 1"),
            ("ratio", "-inf", "give a number from 0 to 1"),
            ("ratio", "0,5", "give a number from 0 to 1"),
            ("ratio", "", "give a number from 0 to 1"),
            ("count", "1.5", "give a whole number"),
            ("strict", "maybe", "give true or false"),
            ("mode", "median", "give one of mean, max"),
            ("limit", "many", "give a whole number"),
        ],
    )
    def test_a_wrong_value_is_refused_with_what_is_possible(self, key, text, fix):
        with pytest.raises(InvalidFieldError) as caught:
            create("Typed", {"ratio": "0.5", key: text})
        assert (caught.value.field, caught.value.value, caught.value.fix) == (f"{PARAMETERS}.{key}", repr(text), fix)

    @pytest.mark.parametrize("key", ["Ratio", "seen", "__class__", ""])
    def test_an_unknown_one_is_refused_with_the_known_ones(self, key):
        fix = "use one of count, limit, mode, note, ratio, strict"
        with pytest.raises(InvalidFieldError, match=f"^{PARAMETERS}.{key}: .*{fix}"):
            create("Typed", {"ratio": "0.5", key: "1"})

    EMPTY = ("", "soft", "sample", "sample()", "sample(2)", "sample(-1)", "sample(nan)", "hard\n!")

    @pytest.mark.parametrize(
        ("name", "parameters", "message"),
        [
            ("IBT", {"treshold_img": "0.5"}, r"did you mean threshold_img\?"),
            ("CloudOnly", {"threshold": "0.5"}, "remove it: the algorithm has no parameters"),
            *(("IBT", {"empty": empty}, r"hard, easy or sample\(p\)") for empty in EMPTY),
        ],
    )
    def test_what_an_algorithm_does_not_take_is_refused_with_what_it_does(self, name, parameters, message):
        with pytest.raises(InvalidFieldError, match=message):
            create(name, parameters)

    def test_what_an_algorithm_itself_refuses_is_named(self):
        @register("Picky")
        @dataclass
        class Picky:
            level: int = 0

            def __post_init__(self):
                raise ArithmeticError("odd")

        with pytest.raises(
            InvalidFieldError, match=f"^{PARAMETERS}: .*Picky refuses its parameters: ArithmeticError: odd"
        ):
            create("Picky", {"level": "1"})

    @given(st.sampled_from(names()), st.dictionaries(st.text(max_size=12) | st.just("seed"), st.text(max_size=8)))
    def test_any_parameters_build_a_miner_or_are_refused_by_field(self, name, parameters):
        try:
            create(name, parameters)
        except InvalidFieldError as error:
            assert error.field.startswith(PARAMETERS)  # noqa: PT017 (either outcome is right)


class TestNewAlgorithms:
    def test_a_file_in_the_package_is_enough(self, tmp_path, monkeypatch):
        (tmp_path / "new_one.py").write_text(NEW_ALGORITHM.format(name="NewOne"))
        monkeypatch.setattr(mining, "__path__", [*mining.__path__, str(tmp_path)])
        import_siblings.cache_clear()
        assert create("NewOne", {"level": "1"})(Prediction()) is False
        assert "NewOne" in names()

    def install(self, folder: Path, monkeypatch, *entries: tuple[str, str, str]) -> None:
        """Install a distribution whose entry points are (name, module, source)."""
        monkeypatch.syspath_prepend(folder)
        info = folder / "halimede_plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halimede-plugin\nVersion: 1.0\n")
        lines = ["[halimede.mining]"]
        for name, module, source in entries:
            (folder / f"{module.partition(':')[0]}.py").write_text(source)
            lines.append(f"{name} = {module}")
        (info / "entry_points.txt").write_text("\n".join(lines))

    def test_an_entry_point_is_enough_and_is_imported_only_when_asked_for(self, tmp_path, monkeypatch):
        self.install(tmp_path, monkeypatch, ("PlugIn", "plugin_a", NEW_ALGORITHM.format(name="PlugIn")))
        create("IBT", {})
        assert "plugin_a" not in sys.modules
        assert "PlugIn" in names()
        assert create("plugin", {})(Prediction()) is True

    def test_an_entry_point_may_name_a_class_that_registers_nothing(self, tmp_path, monkeypatch):
        source = NEW_ALGORITHM.replace('@register("{name}")', "")
        self.install(tmp_path, monkeypatch, ("Bare", "plugin_b:New", source))
        assert create("Bare", {"level": "2"})(Prediction()) is False

    def test_a_broken_plug_in_stops_no_other_and_is_named_when_its_algorithm_is_missed(self, tmp_path, monkeypatch):
        works, ibt = (NEW_ALGORITHM.format(name=name) for name in ("Works", "IBT"))
        broken = ("Broken", "plugin_c", "raise RuntimeError('no licence')")
        self.install(tmp_path, monkeypatch, broken, ("Works", "plugin_d", works), ("IBT", "plugin_e", ibt))
        assert create("Works", {})(Prediction()) is True
        with pytest.raises(InvalidFieldError, match=r"plug-in Broken.*RuntimeError: no licence"):
            create("Broken", {})
        assert type(create("IBT", {})).__module__ == "halimede.mining.ibt"
