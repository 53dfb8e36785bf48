from __future__ import annotations

from sandpool.node.images.config import ImageConfig, parse_oci_config


def test_image_config_is_read() -> None:
    document = {
        "architecture": "amd64",
        "config": {
            "Env": ["PATH=/bin", "EMPTY=", "WITH=a=b"],
            "Entrypoint": ["/entry"],
            "Cmd": ["serve", "--now"],
            "WorkingDir": "/app",
            "User": "1000:1000",
            "StopSignal": "SIGINT",
            "Labels": {"ignored": "yes"},
        },
    }
    assert parse_oci_config(document) == ImageConfig(
        {"PATH": "/bin", "EMPTY": "", "WITH": "a=b"}, ("/entry",), ("serve", "--now"), "/app", "1000:1000", "SIGINT"
    )


def test_missing_image_config_is_empty() -> None:
    assert (
        parse_oci_config({})
        == parse_oci_config({"config": None})
        == parse_oci_config({"config": {"Env": None, "Cmd": None}})
        == ImageConfig()
    )
