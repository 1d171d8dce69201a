#!/usr/bin/python3 -SE
"""A Python that has torch already: it answers for the programs of a test suite, each of which would take seconds to import it.

    warm_python.py --serve PYTHON_ARGS...     prints a line once torch is there; then serves until its standard input ends
    warm_python.py -I SCRIPT ARGUMENTS...     what a program starts as $TANDEM_PYTHON

The second sends its three descriptors and its arguments to the first, by the socket $TANDEM_WARM_PYTHON. That forks, and the child
runs the script as a fresh Python would; its end is the end of the second.
"""

import array
import json
import os
import signal
import socket
import sys


def child(arguments, descriptors):
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)
    import runpy

    sys.argv = arguments
    code = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(listener):
    import select

    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return  # the suite has ended
        connection, _ = listener.accept()
        text, rights, _, _ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(3 * 4))
        descriptors = array.array("i")
        descriptors.frombytes(rights[0][2])
        process = os.fork()
        if process == 0:
            child(json.loads(text), list(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(process, 0)
        connection.sendall(str(status).encode())
        connection.close()


def ask(arguments):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(os.environ["TANDEM_WARM_PYTHON"])
        socket.send_fds(server, [json.dumps(arguments).encode()], [0, 1, 2])
        for descriptor in (0, 1, 2):
            os.close(descriptor)  # a pipe to the child ends with the child
        status = int(server.recv(64))
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def main():
    if sys.argv[1] != "--serve":
        ask(sys.argv[2:])
    import torch  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.environ["TANDEM_WARM_PYTHON"])
    listener.listen(16)
    print("ready", flush=True)
    serve(listener)


if __name__ == "__main__":
    main()
