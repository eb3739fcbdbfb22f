import pytest

from lib.chapter import Folder, Increasing, Integer, Number, Rule, Span, environment, validate

PARAMETERS = {
    "d": Integer(1, 512),
    "ridge": Number(0, 1),
    "widths": Increasing(Integer(1, 100), 2),
    "span": Span(Integer(1, 100)),
    "runs": Folder(),
}
GOOD = {"d": 64, "ridge": 1e-6, "widths": [8, 16, 32], "span": [2, 50], "runs": "_runs/paper"}


def test_good_parameters_pass_in_silence():
    assert validate(GOOD, **PARAMETERS) is None
    assert validate(GOOD | {"ridge": 1, "d": 512}, **PARAMETERS) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"d": 0}, r"d = 0 \(int\); allowed: integer 1\.\.512"),
        ({"d": 64.5}, r"d = 64.5 \(float\); allowed: integer 1\.\.512"),
        ({"d": 64.0}, r"d = 64.0 \(float\)"),
        ({"d": True}, r"d = True \(bool\)"),
        ({"d": "64"}, r"d = '64' \(str\)"),
        ({"d": None}, r"d = None \(NoneType\)"),
        ({"ridge": -1e-9}, r"ridge = -1e-09 \(float\); allowed: number 0\.\.1"),
        ({"ridge": float("nan")}, "ridge = nan"),
        ({"ridge": float("inf")}, "ridge = inf"),
        ({"ridge": "0.1"}, r"ridge = '0.1' \(str\)"),
        ({"widths": []}, r"widths = \[\] \(list\); allowed: 2 or more, increasing, each integer"),
        (
            {"widths": "[]"},
            r"widths = '\[\]' \(str\).*papermill takes a list as -y 'widths: \[...\]'",
        ),
        ({"widths": [16, 8]}, r"widths = \[16, 8\]"),
        ({"widths": [8, 8]}, r"widths = \[8, 8\]"),
        ({"widths": [8, "16"]}, "widths = "),
        ({"widths": 8}, r"widths = 8 \(int\)"),
        ({"span": [1, 2, 3]}, r"span = \[1, 2, 3\] \(list\); allowed: \[smallest, largest\], each"),
        ({"span": [50]}, r"span = \[50\]"),
        ({"span": [0, 50]}, r"span = \[0, 50\]"),
        ({"runs": ""}, r"runs = '' \(str\); allowed: folder, relative to the repository"),
        ({"runs": 3}, r"runs = 3 \(int\)"),
    ],
)
def test_a_bad_parameter_is_named_with_its_value_and_what_is_allowed(change, problem):
    with pytest.raises(ValueError, match=problem):
        validate(GOOD | change, **PARAMETERS)


def test_every_problem_is_in_one_message():
    with pytest.raises(ValueError) as caught:
        validate({"d": 0, "ridge": 2, "widths": [8, 16]}, **PARAMETERS)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    assert "span is missing" in lines[-2]


def test_unknown_names_are_found_in_the_injected_cell_only():
    injected = "# Parameters\ndd = 64\nwidths = [1, 2]\n"
    namespace = GOOD | {"In": ["", "d = 64", injected, "validate(...)"], "unrelated": 1}
    with pytest.raises(ValueError, match="dd is not a parameter of this chapter; it has d, ridge"):
        validate(namespace, **PARAMETERS)
    # Later in the same session, with a name of the reader's own, it is not asked again.
    validate(GOOD | {"In": ["", injected, "validate(...)", "x = 2", "validate(...)"]}, **PARAMETERS)


def test_joint_rules_are_asked_once_each_parameter_is_fine():
    rule = Rule("d must not exceed the smallest width", lambda p: p["d"] <= p["widths"][0])
    with pytest.raises(ValueError, match="d must not exceed the smallest width"):
        validate(GOOD, rule, **PARAMETERS)
    with pytest.raises(ValueError, match="widths = 'x'") as caught:
        validate(GOOD | {"widths": "x"}, rule, **PARAMETERS)
    assert "must not exceed" not in str(caught.value)


def test_the_environment_names_python_and_torch():
    assert environment().startswith("Python 3.")
    assert "torch 2." in environment()
