"""The tools, called by the SDK's own client in memory. Commands run on this machine."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from sandpool.api.kinds import POD, SANDBOX_CLAIM
from sandpool.mcp.sessions import Sessions
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.mcp.conftest import call, claims, fails, text
from tests.support.fake_pod_client import FakePodClient

PUBLISHED = {
    "create_sandbox": {
        *("warmpool", "namespace", "sandbox_ready_timeout", "shutdown_after_seconds"),
        *("labels", "pod_labels", "pod_annotations"),
    },
    "delete_sandbox": {"sandbox_claim_name", "namespace"},
    "execute_command": {"sandbox_claim_name", "namespace", "command", "timeout"},
    "upload_file": {"sandbox_claim_name", "namespace", "path", "content", "binary", "timeout"},
    "download_file": {"sandbox_claim_name", "namespace", "path", "binary", "timeout"},
    "list_files": {"sandbox_claim_name", "namespace", "path", "timeout", "max_entries"},
    "file_exists": {"sandbox_claim_name", "namespace", "path", "timeout"},
}


#: Classes of code: one whose objects have an empty text, and a picture of a number of bytes and a letter.
NAMELESS = "class Nameless:\n    def __repr__(self): return ''"
PICTURE = """
class Picture:
    def __init__(self, size): self.size = size
    def __repr__(self): return "<Picture>"
    def _repr_png_(self): return b"P" * self.size + b"."
"""


async def test_tools_have_the_names_and_parameters_that_are_published(model: Client) -> None:
    tools = {tool.name: tool for tool in (await model.list_tools()).tools}
    assert set(tools) == {*PUBLISHED, "run_code", "open_port", "list_sandboxes"}
    for name, parameters in PUBLISHED.items():
        assert parameters == set(tools[name].input_schema["properties"]), name
    assert all(tool.description for tool in tools.values())


async def test_a_session_keeps_its_sandbox(model: Client, service: Service) -> None:
    assert (await call(model, "execute_command", command="echo kept > file; echo out; echo err >&2; exit 3")) == {
        "exit_code": 3,
        "stdout": "out\n",
        "stderr": "err\n",
        "truncated": False,
        "stdout_size": 4,
        "stderr_size": 4,
        "timed_out": False,
    }
    assert (await call(model, "execute_command", command="cat file"))["stdout"] == "kept\n"
    assert len(await claims(service)) == 1
    listed = (await call(model, "list_sandboxes"))["sandbox_claim_names"]
    assert listed == await claims(service)


async def test_calls_at_once_share_the_first_sandbox(model: Client, service: Service) -> None:
    await asyncio.gather(*(call(model, "file_exists", path="x") for _ in range(4)))
    assert len(await claims(service)) == 1


async def test_further_sandboxes_are_made_and_released_by_name(model: Client, service: Service) -> None:
    name = (await call(model, "create_sandbox", warmpool="python", sandbox_ready_timeout=30))["sandbox_claim_name"]
    assert await claims(service) == [name]
    assert (await call(model, "execute_command", command="echo there", sandbox_claim_name=name))["stdout"] == "there\n"
    await call(model, "delete_sandbox", sandbox_claim_name=name)
    assert await claims(service) == []
    assert f'no sandbox "{name}"' in await fails(model, "execute_command", command="true", sandbox_claim_name=name)


async def test_metadata_reaches_the_claim_and_its_warm_pod(model: Client, world: World) -> None:
    given = {
        "labels": {"team": "a"},
        "pod_labels": {"sandbox.users.io/team": "a"},
        "pod_annotations": {"example.com/note": "a b"},
    }
    name = (await call(model, "create_sandbox", **given))["sandbox_claim_name"]
    claim = await world.get(SANDBOX_CLAIM, name)
    assert given["labels"].items() <= claim["metadata"]["labels"].items()

    async def pod_has_them() -> bool:
        metadata = (await world.get(POD, claim["status"]["sandbox"]["name"]))["metadata"]
        return (
            given["pod_labels"].items() <= metadata["labels"].items()
            and given["pod_annotations"].items() <= (metadata.get("annotations") or {}).items()
        )

    await world.until(pod_has_them)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"labels": {"sandpool.dev/run": "true"}}, "labels of the domain sandpool.dev are not for users"),
        ({"labels": {"x.sandpool.dev/y": ""}}, "labels of the domain sandpool.dev are not for users"),
        ({"labels": {"a b": ""}}, "metadata.labels"),
        ({"pod_labels": {"example.com/team": "a"}}, 'failed to validate label "example.com/team"'),
        ({"pod_annotations": {"kubernetes.io/x": "a"}}, 'failed to validate annotation "kubernetes.io/x"'),
    ],
    ids=str,
)
async def test_metadata_that_is_not_allowed_is_told(
    model: Client, service: Service, given: dict[str, Any], told: str
) -> None:
    assert told in await fails(model, "create_sandbox", **given)
    assert await claims(service) == []


async def test_sandboxes_of_others_are_not_found(model: Client, service: Service) -> None:
    await service.claims.create("python", name="of-another-user")
    for tool, arguments in (("execute_command", {"command": "true"}), ("delete_sandbox", {})):
        told = await fails(model, tool, sandbox_claim_name="of-another-user", **arguments)
        assert 'this session has no sandbox "of-another-user"' in told
    assert await claims(service) == ["of-another-user"]


async def test_another_namespace_is_refused(model: Client) -> None:
    assert 'uses the namespace "default"' in await fails(model, "create_sandbox", namespace="kube-system")
    await call(model, "file_exists", path="x", namespace="default")


async def test_a_pool_that_does_not_exist_is_told(model: Client, service: Service) -> None:
    assert "Did you mean python?" in await fails(model, "create_sandbox", warmpool="pyton")
    assert await claims(service) == []


async def test_output_arrives_while_the_command_runs(model: Client, directory: Path) -> None:
    """The command waits for a file that is made when its first line has arrived."""
    seen: list[tuple[float, str | None]] = []

    async def show(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))
        (directory / "go").touch()

    script = "echo begun; until [ -e go ]; do sleep 0.01; done; echo ended"
    result = await model.call_tool("execute_command", {"command": script}, progress_callback=show)
    assert seen == [(6, "begun\n"), (12, "ended\n")]
    assert result.structured_content is not None and result.structured_content["stdout"] == "begun\nended\n"


async def test_output_is_capped(model: Client) -> None:
    done = await call(model, "execute_command", command="head -c 5000 /dev/zero | tr '\\0' x")
    assert (len(done["stdout"]), done["truncated"]) == (1024, True)
    assert (done["stdout_size"], done["stderr_size"]) == (5000, 0)


async def test_the_result_of_code_is_capped_in_all(model: Client) -> None:
    """The limit of this server is 1,024 bytes of each of output, results and traceback."""
    capped = await model.call_tool("run_code", {"code": "print('ü' * 2500)"})
    shown, note = (getattr(block, "text", "") for block in capped.content)
    assert len(shown.encode()) == 1024
    assert note == "(dropped: output beyond 1024 bytes; the code wrote 5001 bytes on stdout and 0 on stderr)"

    capped = await model.call_tool("run_code", {"code": "print('x' * 2_999_999)"})
    assert "the code wrote 3000000 bytes on stdout and 0 on stderr" in text(capped)

    capped = await model.call_tool("run_code", {"code": "for i in range(3000): display('x' * 98)"})
    shown, note = (getattr(block, "text", "") for block in capped.content)
    assert (len(shown), shown[:101]) == (1024, f"{'x' * 98!r}\n")
    values = 1024 - shown.count("\n")
    assert note == f"(dropped: {300_000 - values} bytes of the text of results)"

    capped = await model.call_tool("run_code", {"code": f"{NAMELESS}\nfor i in range(100_000): display(Nameless())"})
    assert sum(len(block.model_dump_json()) for block in capped.content) < 4096, "results without text are not free"

    told = await fails(model, "run_code", code="display('shown'); raise ValueError('x' * 3000, 'the end')")
    assert "shown" in told and "Traceback" in told and "'the end')" in told
    assert len(told) < 1200 and "bytes were dropped" in told


async def test_the_pictures_of_a_result_are_capped_in_all(model: Client) -> None:
    capped = await model.call_tool("run_code", {"code": f"{PICTURE}\nfor i in range(5): display(Picture(400_000))"})
    assert [block.type for block in capped.content] == ["image", "image", "text", "text"]
    assert len(getattr(capped.content[1], "data", "")) == 4 * 400_000 // 3 + 3
    assert text(capped) == "<Picture>\n<Picture>\n<Picture>\n(dropped: 3 pictures of 1200003 bytes)"

    capped = await model.call_tool("run_code", {"code": f"{PICTURE}\nfor i in range(25): display(Picture(9))"})
    assert [block.type for block in capped.content] == ["image"] * 20 + ["text"] * 2
    assert "5 pictures of 50 bytes" in text(capped)

    capped = await model.call_tool("run_code", {"code": f"{PICTURE}\nfor i in range(20): display(Picture(900_000))"})
    assert "12 pictures of 10800012 bytes; 7 displayed objects that were too large to be sent" in text(capped)

    failed = await model.call_tool("run_code", {"code": f"{PICTURE}\ndisplay(Picture(9)); 1 / 0"})
    assert [block.type for block in failed.content] == ["image", "text"] and failed.is_error
    both = "Picture._repr_jpeg_ = Picture._repr_png_\nPicture(9)"
    (block,) = (await model.call_tool("run_code", {"code": f"{PICTURE}\n{both}"})).content
    assert getattr(block, "mime_type", "") == "image/png"


async def test_a_command_is_killed_after_its_timeout(model: Client) -> None:
    done = await call(model, "execute_command", command="echo begun; sleep 100", timeout=1)
    assert (done["timed_out"], done["stdout"]) == (True, "begun\n")


async def test_code_keeps_its_variables_and_shows_values_and_pictures(model: Client) -> None:
    assert text(await model.call_tool("run_code", {"code": "a = 6"})) == ""
    assert text(await model.call_tool("run_code", {"code": "print('said'); a * 7"})) == "said\n\n42"
    picture = "class P:\n    def _repr_png_(self): return b'PNG'\nP()"
    (block,) = (await model.call_tool("run_code", {"code": picture})).content
    assert (block.type, getattr(block, "mime_type", "")) == ("image", "image/png")
    assert base64.b64decode(getattr(block, "data", "")) == b"PNG"
    told = await fails(model, "run_code", code="print('before'); 1 / 0")
    assert "before" in told and "ZeroDivisionError" in told


@pytest.mark.parametrize(
    ("content", "binary", "size"), [("text ü\n", False, 8), (base64.b64encode(b"\xff\0").decode(), True, 2)]
)
async def test_files_are_written_and_read(model: Client, content: str, binary: bool, size: int) -> None:
    wrote = await call(model, "upload_file", path="made/file", content=content, binary=binary)
    assert wrote == {"bytes_written": size}
    read = await call(model, "download_file", path="made/file", binary=binary)
    assert read == {"content": content, "bytes_read": size}
    assert (await call(model, "file_exists", path="made/file"))["exists"] is True
    assert (await call(model, "file_exists", path="nope"))["exists"] is False


async def test_a_directory_is_listed(model: Client, directory: Path, pods: FakePodClient) -> None:
    (directory / "a").write_text("12345")
    (directory / "b").mkdir()
    listing = await call(model, "list_files")
    assert [(entry["name"], entry["type"]) for entry in listing["entries"]] == [("a", "file"), ("b", "directory")]
    assert (listing["entries"][0]["size"], listing["total_entries"], listing["truncated"]) == (5, 2, False)
    assert listing["entries"][0]["mod_time"].startswith("20")
    assert await call(model, "list_files", path="") == listing
    (root,) = [entry for entry in (await call(model, "list_files", path="/"))["entries"] if entry["name"] == "tmp"]
    assert root["type"] == "directory"
    (directory / "c").symlink_to("a")
    (directory / os.fsdecode(b"\xff")).touch()
    commands = len(pods.sessions)
    entries = (await call(model, "list_files"))["entries"]
    assert [(entry["name"], entry["type"]) for entry in entries[2:]] == [("c", "link"), ("\ufffd", "file")]
    assert len(pods.sessions) == commands + 1, "it takes one command, however many entries there are"
    (directory / "c").unlink()
    (directory / os.fsdecode(b"\xff")).unlink()
    short = await call(model, "list_files", path=str(directory), max_entries=1)
    assert [entry["name"] for entry in short["entries"]] == ["a"]
    assert (short["total_entries"], short["truncated"]) == (2, True)


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("download_file", {"path": "nope"}, "cannot read nope"),
        ("download_file", {"path": "bytes"}, "read it with binary=true"),
        ("download_file", {"path": "large"}, "is larger than 1048576 bytes"),
        ("list_files", {"path": "nope"}, "there is no file or directory nope"),
        ("upload_file", {"path": "x", "content": "!", "binary": True}, "is not base64"),
        ("upload_file", {"path": "x", "content": "ü", "binary": True}, "is not base64"),
        ("upload_file", {"path": "bytes/x", "content": ""}, "cannot write bytes/x"),
        ("open_port", {"port": 0}, "greater than or equal to 1"),
        ("execute_command", {"command": "true", "timeout": 601}, "less than or equal to 600"),
    ],
)
async def test_mistakes_are_told_to_the_model(
    model: Client, directory: Path, tool: str, arguments: dict[str, Any], told: str
) -> None:
    (directory / "bytes").write_bytes(b"\xff")
    (directory / "large").write_bytes(bytes((1 << 20) + 1))
    assert told in await fails(model, tool, **arguments)


async def test_a_cancelled_call_kills_its_command(model: Client, pods: Any) -> None:
    began = asyncio.Event()

    async def show(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    arguments = {"command": "echo begun; sleep 1000"}
    calling = asyncio.create_task(model.call_tool("execute_command", arguments, progress_callback=show))
    await began.wait()
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await asyncio.gather(*pods._plays, return_exceptions=True)
    assert pods.sessions[-1].closed


async def test_the_sandboxes_of_a_session_are_a_resource(model: Client) -> None:
    name = (await call(model, "create_sandbox"))["sandbox_claim_name"]
    read = await model.read_resource("sandboxes://default")
    assert name in str(read.contents[0])


async def test_the_end_of_the_server_releases_everything(model: Client, sessions: Sessions, service: Service) -> None:
    await call(model, "create_sandbox")
    await call(model, "file_exists", path="x")
    assert len(await claims(service)) == 2
    await sessions.close()
    assert await claims(service) == []
