"""`rlpad doctor` on this installation, and its judgement on ones that are made up."""

import importlib.util
import json
import sys

import pytest

from rlpad.cli import doctor
from rlpad.cli.main import main as rlpad
from rlpad.errors import UserError

HEALTHY = {
    "jax": "0.4.34",
    "jaxlib": "0.4.34",
    "numpy": "1.26.4",
    "dm-haiku": "0.0.16",
    "optax": "0.2.5",
    "gymnasium": "1.4.0",
    "dm-reverb": "0.14.0",
    "tensorflow-cpu": "2.15.1",
}
MODERN = {
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "numpy": "2.4.6",
    "dm-haiku": "0.0.17",
    "optax": "0.2.8",
    "gymnasium": "1.4.0",
}


@pytest.fixture
def made_up(monkeypatch):
    """Replaces what is found out about this machine; returns a function that sets the versions."""
    monkeypatch.setattr(doctor, "import_error", lambda module: None)
    monkeypatch.setattr(doctor, "_devices", lambda: (("cpu:0 (cpu)",), None))
    monkeypatch.setattr(doctor, "_agents", lambda: ({"dqn": "Deep Q-learning."}, {}))
    monkeypatch.setattr(doctor, "_is_there", lambda module: True)

    def set_versions(versions):
        monkeypatch.setattr(doctor, "_version", versions.get)

    set_versions(HEALTHY)
    return set_versions


def test_this_installation(capsys):
    code = doctor.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == (1 if report["problems"] else 0)
    assert report["ok"] == (code == 0)
    import jax

    assert report["packages"]["jax"] == jax.__version__
    assert report["python"] == sys.version.split()[0]
    assert report["cpus"] >= 1
    assert report["devices"][0].startswith(jax.devices()[0].platform)
    assert set(report["extras"]) == {
        "reverb",
        "atari",
        "box2d",
        "video",
        "tensorboard",
        "wandb",
        "tls",
        "gpu",
    }
    assert report["extras"]["reverb"]["ok"] == (importlib.util.find_spec("reverb") is not None)
    assert "dqn" in {**report["agents"], **report["broken_agents"]}


def test_the_reverb_stack(made_up, capsys):
    assert rlpad(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  stack           reverb stack (dm-reverb 0.14.0, JAX 0.4.34)" in lines
    assert "  dm-haiku        0.0.16" in lines
    assert "  reverb          ok" in lines
    assert "  dqn             Deep Q-learning." in lines
    assert lines[-1] == "Nothing is wrong."
    text = " ".join(" ".join(lines).split())
    assert "worth knowing - Reverb's samplers can't be seeded, so runs with it aren't reproducible." in text
    assert "listens on every interface without authentication: firewall it, or use --replay embedded." in text
    assert "problems" not in lines


def test_the_modern_stack_without_any_extra(made_up, monkeypatch, capsys):
    made_up(MODERN)
    monkeypatch.setattr(doctor, "_is_there", lambda module: False)
    monkeypatch.setattr(doctor, "_reverb_runs_here", lambda: True)
    assert doctor.main([]) == 0  # what is optional may be missing
    text = capsys.readouterr().out
    assert "newest JAX, embedded replay" in text
    assert "Reverb's" not in text
    for name in ("reverb", "atari", "box2d", "video", "tensorboard", "wandb", "tls", "gpu"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
        assert "missing" in line and line.endswith(f"pip install 'rlpad[{name}]'")


def test_a_partly_missing_extra_names_the_module(made_up, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_is_there", lambda module: module != "cv2")
    assert doctor.main([]) == 0
    assert "  atari           missing cv2: pip install 'rlpad[atari]'" in capsys.readouterr().out.splitlines()


def test_where_reverb_has_no_wheels_its_remedy_says_so(made_up, monkeypatch):
    made_up(MODERN)
    monkeypatch.setattr(doctor, "_is_there", lambda module: False)
    monkeypatch.setattr(doctor, "_reverb_runs_here", lambda: False)
    assert doctor.examine().extras["reverb"].remedy == (
        "pip install 'rlpad[reverb]' (on Python 3.11, Linux x86-64 only)"
    )


@pytest.mark.parametrize("versions", [HEALTHY, MODERN])
def test_what_fits_is_no_problem(versions):
    assert doctor.find_problems(versions) == []


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        (
            {"numpy": "2.0.0"},
            "numpy 2.0.0 beside dm-reverb 0.14.0 and TensorFlow 2.15.1, built for numpy 1",
            "pip install 'numpy<2'",
        ),
        (
            {"numpy": "2.1.3", "dm-reverb": None},
            "numpy 2.1.3 beside TensorFlow 2.15.1, built for numpy 1",
            "pip install 'numpy<2'",
        ),
        (
            {"dm-haiku": "0.0.17"},
            "dm-haiku 0.0.17 beside JAX 0.4.34, which is too old for it",
            "pip install 'dm-haiku<=0.0.16'",
        ),
        ({"optax": None}, "optax isn't installed", "pip install optax"),
    ],
)
def test_versions_that_do_not_fit(change, problem, remedy):
    assert doctor.find_problems({**HEALTHY, **change}) == [doctor.Problem(problem, remedy)]


def test_problems_are_printed_with_their_remedy_and_give_exit_code_one(made_up, capsys):
    made_up({**HEALTHY, "numpy": "2.0.0"})
    assert rlpad(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "    remedy: pip install 'numpy<2'" in text.splitlines()
    assert "Nothing is wrong" not in text
    assert rlpad(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["problems"][0]["remedy"] == "pip install 'numpy<2'"


def test_jax_that_fails(made_up, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_devices", lambda: ((), "Unknown backend: 'tpu'"))
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "JAX doesn't work: Unknown backend: 'tpu'" in text
    assert "remedy: JAX_PLATFORMS is set to 'tpu': unset it" in text


def test_jax_and_jaxlib_of_different_versions(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    (problem,) = doctor.find_problems({**HEALTHY, "jaxlib": "0.4.20"}, jax_error="jaxlib is version 0.4.20")
    assert problem.remedy == "pip install 'jax==0.4.34' 'jaxlib==0.4.34'"


def test_an_import_error_of_jax_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    devices, error = doctor._devices()
    assert devices == () and "jax" in error


def test_reverb_that_can_not_be_imported(made_up, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "import_error", lambda module: f"ImportError: {module} is broken")
    assert doctor.main([]) == 1
    assert "can't be imported: ImportError: reverb is broken" in " ".join(capsys.readouterr().out.split())


def test_reverb_is_not_imported_where_it_is_not_installed(made_up, monkeypatch):
    made_up(MODERN)
    monkeypatch.setattr(doctor, "import_error", lambda module: pytest.fail("imported"))
    assert doctor.examine().problems == ()


def test_broken_agents_are_named_with_the_reason(made_up, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_agents", lambda: ({}, {"mine": "can't import module 'mine'"}))
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "  mine            broken" in text.splitlines()
    assert "agent 'mine' is registered but can't be used: can't import module 'mine'" in text


def test_an_agent_that_raises_anything_is_broken(monkeypatch):
    from rlpad import registry

    def get_agent(name):
        raise SyntaxError("two\nlines")

    monkeypatch.setattr(registry, "agent_names", lambda: ["bad"])
    monkeypatch.setattr(registry, "get_agent", get_agent)
    assert doctor._agents() == ({}, {"bad": "two lines"})


def test_imports_are_tried_in_a_process_of_their_own(tmp_path, monkeypatch):
    (tmp_path / "fine_module.py").write_text("")
    (tmp_path / "failing_module.py").write_text("raise RuntimeError('wrong version')")
    (tmp_path / "crashing_module.py").write_text("import os\nos.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.import_error("fine_module") is None
    assert doctor.import_error("failing_module") == "RuntimeError: wrong version"
    assert doctor.import_error("crashing_module").startswith("ended by signal 6")
    assert "fine_module" not in sys.modules


def test_an_unknown_flag_is_one_line():
    with pytest.raises(UserError, match="unknown flag '--jsn'; did you mean '--json'"):
        doctor.main(["--jsn"])
