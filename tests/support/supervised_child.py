"""A supervised child for tests: does what the messages of its parent say."""

from __future__ import annotations

import os
import socket
import sys
import time

from sandpool.process.control import ControlReceiver, sockets


def main(descriptor: int) -> None:
    control = ControlReceiver(socket.socket(fileno=descriptor))
    while (message := control.receive_blocking()) is not None:
        received = sockets(message.descriptors)
        match message.operation:
            case "become ready":
                control.ready()
            case "echo":
                text = message.fields["text"]
                received[0].send(f"{len(text)} {text[0]}".encode())
            case "log":
                sys.stderr.write(message.fields["text"])
                sys.stderr.flush()
            case "talk":
                control.connection.send(b"anything else")
            case "ignore":
                time.sleep(1000)
            case "end":
                os._exit(0)
        for sock in received:
            sock.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
