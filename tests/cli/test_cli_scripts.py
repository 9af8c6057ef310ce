"""Scripts: which words are one, and what their directives do."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import FakeDaemon


def _sent(fake: FakeDaemon) -> tuple[dict[str, Any], bytes | None]:
    body = fake.bodies("/v1/jobs")[-1]
    return body["spec"], None if body["script"] is None else base64.b64decode(body["script"])


def _script(text: str, name: str = "train.sh") -> str:
    Path(name).write_text(text)
    return name


def test_the_text_is_captured(fake: FakeDaemon, gpuq: Any) -> None:
    """The script goes along as it is now, with its arguments; its name is the job's."""
    text = "#!/bin/bash\necho hi\n"
    assert gpuq("submit", _script(text), "--x", "1").code == 0
    spec, script = _sent(fake)
    assert script == text.encode()
    assert spec["argv"] == [str(Path("train.sh").absolute()), "--x", "1"]
    assert spec["name"] == "train.sh"


def test_directives(fake: FakeDaemon, gpuq: Any) -> None:
    """#GPUQ and #SBATCH lines before the first command are options; later ones are text."""
    text = "#!/bin/bash\n\n# note\n#GPUQ --gpus 2 -t 1h\n#SBATCH --job-name=big --mem 4G\necho\n#GPUQ --gpus 9\n"
    ran = gpuq("submit", _script(text))
    assert (ran.code, ran.err) == (0, "")
    spec, _ = _sent(fake)
    assert spec["resources"] == {"gpus": 2, "memory_mib": 4096}
    assert (spec["time_limit_s"], spec["name"]) == (3600.0, "big")
    assert fake.bodies("/v1/jobs")[0]["gpus_given"] is True


def test_what_beats_what(fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line beats environment beats directive."""
    monkeypatch.setenv("GPUQ_SUBMIT_TIME", "2h")
    monkeypatch.setenv("GPUQ_SUBMIT_RETRIES", "5")
    text = "#!/bin/sh\n#GPUQ --time 1h --retries 1 --priority 3\n"
    assert gpuq("submit", "--retries", "7", _script(text)).code == 0
    spec, _ = _sent(fake)
    assert (spec["time_limit_s"], spec["retries"], spec["priority"]) == (7200.0, 7, 3)


def test_ignored_sbatch_flags_are_named(fake: FakeDaemon, gpuq: Any) -> None:
    """A #SBATCH flag that gpuq does not know is never swallowed: it is named, once each."""
    text = "#!/bin/sh\n#SBATCH -p gpu --mail-type=END\n#SBATCH --nodes=1 --ntasks=4\n#SBATCH -q high\n"
    ran = gpuq("submit", _script(text))
    assert ran.code == 0
    for flag in ("-p=gpu", "--mail-type=END", "--ntasks=4", "-q=high"):
        assert f"#SBATCH {flag} is ignored" in ran.err
    assert "--nodes" not in ran.err


def test_a_wrong_gpuq_line_is_refused_with_its_number(fake: FakeDaemon, gpuq: Any) -> None:
    """A mistake in a #GPUQ line is an error that names file and line."""
    ran = gpuq("submit", _script("#!/bin/sh\n#GPUQ --gpsu 2\n"))
    assert ran.code == 2
    assert "train.sh, line 2" in ran.err
    assert fake.asked == []


def test_open_quotes_in_a_directive(fake: FakeDaemon, gpuq: Any) -> None:
    """A directive whose quotes are open is one sentence."""
    ran = gpuq("submit", _script("#!/bin/sh\n#GPUQ -J 'x\n"))
    assert ran.code == 2
    assert "line 2" in ran.err


def test_directives_without_a_first_line(fake: FakeDaemon, gpuq: Any) -> None:
    """A script with directives but without #! is run with /bin/sh, and that is said."""
    ran = gpuq("submit", _script("#GPUQ --gpus 3\necho\n"))
    assert ran.code == 0
    assert "will be run with /bin/sh" in ran.err
    spec, script = _sent(fake)
    assert script is not None
    assert script.startswith(b"#!/bin/sh\n#GPUQ")
    assert spec["resources"]["gpus"] == 3


def test_a_word_on_path_is_a_command(
    fake: FakeDaemon, gpuq: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the shell would find on PATH is a command, even when a script of that name lies here."""
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    _script("#!/bin/sh\n", "tool")
    assert gpuq("submit", "tool").code == 0
    assert _sent(fake)[1] is None


def test_a_binary_is_a_command(fake: FakeDaemon, gpuq: Any) -> None:
    """A file that is no text is a command."""
    Path("prog").write_bytes(b"\x7fELF\0\0")
    Path("prog").chmod(0o755)
    assert gpuq("submit", "./prog").code == 0
    assert _sent(fake)[1] is None


def test_a_file_that_cannot_be_run(fake: FakeDaemon, gpuq: Any) -> None:
    """A source file that nothing would run is refused with what to type."""
    ran = gpuq("submit", _script("print(1)\n", "t.py"))
    assert ran.code == 2
    assert "gpuq submit -- python t.py" in ran.err


def test_a_program_that_is_not_here_is_said(fake: FakeDaemon, gpuq: Any) -> None:
    """A mistyped program is named at once; the job is queued, since its node may have it."""
    ran = gpuq("submit", "pyhton", "t.py")
    assert ran.code == 0
    assert "'pyhton' is not found on this machine" in ran.err


def test_a_directory_that_is_not_here_is_said(fake: FakeDaemon, gpuq: Any) -> None:
    """A working directory that does not exist is named at once; the job is queued, since its node may have it."""
    ran = gpuq("submit", "-D", "/no/such/place", "--", "true")
    assert ran.code == 0
    assert "/no/such/place does not exist on this machine" in ran.err
