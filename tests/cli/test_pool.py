"""``sandpool pool``, ``template``, ``suspend`` and ``resume`` as a user does it."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from tests.support.playground import Playground

pytestmark = pytest.mark.isolation

PROGRAM = f"{sys.executable} -m sandpool.cli.main"


def test_a_template_and_a_pool_from_nothing_to_nothing(home: Playground) -> None:
    made = home.works(
        "template",
        "create",
        "own",
        "--image",
        "sandpool.local/python",
        "--memory",
        "128Mi",
        "--disk",
        "1Gi",
        "-e",
        "A=1",
    )
    assert made == "created template own; make a pool of it with: sandpool pool create own\n"
    created = home.works("pool", "create", "own", "--size", "1", "--wait", "30s")
    assert created == "created pool own with 1 warm sandbox of template own\n1 warm sandbox ready\n"
    try:
        assert home.works("run", "--pool", "own", "--", "sh", "-c", "echo $A") == "1\n"
        assert home.works("run", "--template", "own", "--", "true") == ""
        lines = [line.split()[:3] for line in home.works("pool", "ls").splitlines()]
        assert ["own", "own"] in [[line[0], line[2]] for line in lines]
        assert home.works("pool", "scale", "own", "0") == "pool own has 0 warm sandboxes from now on\n"
        assert "OnReplenish" in home.works("pool", "ls", "-o", "wide")
        assert "pool/own" in home.works("pool", "ls", "-o", "name").split()
        assert "0 of 0 sandboxes are ready" in home.works("pool", "rollout", "own", "--watch", "--timeout", "20s")
        shown = yaml.safe_load(home.works("template", "show", "own"))
        assert shown["metadata"] == {"name": "own", "namespace": "default"}
        resources = shown["spec"]["podTemplate"]["spec"]["containers"][0]["resources"]
        assert resources["limits"] == {"memory": "128Mi", "ephemeral-storage": "1Gi"}
        assert "own" in home.works("template", "ls")
        assert 'template "own" is used by pool own' in home.fails("template", "rm", "own")
    finally:
        assert home.works("pool", "rm", "own") == "removed pool own\n"
        assert home.works("template", "rm", "own") == "removed template own\n"
    copy = home.works("template", "create", "again", "-f", "-", stdin=json.dumps(shown).encode())
    assert copy.startswith("created template again;")
    home.works("template", "rm", "again")


def test_an_image_that_is_built_again_names_the_pools_to_restart(home: Playground) -> None:
    user = home.over_the_socket()  # images are found without KUBECONFIG

    def build(value: str) -> str:
        done = user.run("image", "build", "again", "--env", f"VALUE={value}")
        assert done.returncode == 0, done.stderr
        return done.stderr.decode()

    assert "note: " not in build("one")
    home.works("template", "create", "again", "--image", "again")
    home.works("pool", "create", "again", "--size", "2", "--wait", "30s")
    try:
        assert "note: " not in build("one"), "it is the same image"
        assert build("two").splitlines()[-1] == (
            f"note: pool again has 2 idle sandboxes of the earlier again:latest; "
            f"replace with: {PROGRAM} pool rollout again --restart"
        )
        assert home.works("run", "--pool", "again", "--", "sh", "-c", "echo $VALUE") == "one\n"
        home.works("pool", "rollout", "again", "--watch", "--timeout", "30s")
        assert home.works("pool", "rollout", "again", "--restart").startswith("replaced ")
        assert home.works("run", "--pool", "again", "--", "sh", "-c", "echo $VALUE") == "two\n"
        assert "note: " not in build("two")
    finally:
        home.works("pool", "rm", "again")
        home.works("template", "rm", "again")
        user.run("image", "rm", "again")


def test_suspend_and_resume(home: Playground) -> None:
    home.works("claim", "sleeper")
    try:
        assert home.works("resume", "sleeper") == "sleeper is running already\n"
        assert home.works("suspend", "sleeper") == "suspended sleeper\n"
        assert home.works("suspend", "sleeper") == "sleeper is suspended already\n"
        assert "Suspended" in home.works("ls")
        said = home.fails("exec", "sleeper", "--", "true")
        assert 'sandbox "sleeper" is suspended\nResume it with: sandpool resume sleeper' in said
        assert home.works("resume", "sleeper") == "resumed sleeper\n"
        assert home.works("exec", "sleeper", "--", "echo", "back") == "back\n"
    finally:
        home.works("release", "sleeper")


def test_mistakes_are_one_line_with_advice(home: Playground) -> None:
    assert "Did you mean python?" in home.fails("pool", "scale", "pyton", "3")
    assert "Did you mean python?" in home.fails("pool", "create", "pyton")
    assert 'pool "python" already exists' in home.fails("pool", "create", "python")
    assert "Did you mean python?" in home.fails("pool", "rm", "pyton")
    assert "Did you mean python?" in home.fails("template", "show", "pyton")
    assert "give an --image, or a file with -f" in home.fails("template", "create", "x", code=2)
    said = home.fails("template", "create", "x", "--image", "y", "--memory", "lots", code=2)
    assert "'lots' is not an amount: use a form like 512Mi, 2Gi or 2G" in said
    assert "must be more than 0" in home.fails("template", "create", "x", "--image", "y", "--cpu", "0", code=2)
    assert "cannot read nope.yaml: No such file" in home.fails("template", "create", "-f", "nope.yaml")
    assert "is not YAML" in home.fails("template", "create", "-f", "-", stdin=b"[")
    assert "0 documents of kind SandboxTemplate" in home.fails("template", "create", "-f", "-", stdin=b"a: 1")
    assert "the API refused" in home.fails("template", "create", "Bad_Name", "--image", "x")
    assert "there is no claim or sandbox" in home.fails("suspend", "missing")


@pytest.mark.isolation
def test_template_with_a_volume_that_is_mounted_nowhere_is_made_with_a_warning(home: Playground) -> None:
    pod = {"containers": [{"name": "main", "image": "x"}], "volumes": [{"name": "data", "emptyDir": {}}]}
    document = {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": {"name": "unmounted"},
        "spec": {"podTemplate": {"spec": pod}},
    }
    result = home.run("template", "create", "-f", "-", stdin=json.dumps(document).encode())
    assert (result.returncode, result.stderr) == (0, b'warning: volume "data" is mounted in no container\n')
    assert 'volume "data" of the template is mounted in no container' in home.works("why", "template", "unmounted")
    home.works("template", "rm", "unmounted")
