"""`pipe.py SOCKET`: copies stdin to a Unix socket and the socket to stdout, so that a server in another process is a command."""

import os
import socket
import sys
import threading

connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])


def send():
    while data := os.read(0, 1 << 16):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


threading.Thread(target=send, daemon=True).start()
while data := connection.recv(1 << 16):
    while data:
        data = data[os.write(1, data) :]
