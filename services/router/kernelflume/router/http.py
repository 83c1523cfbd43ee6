"""HTTP as uvicorn reads it, but with OpenAI's error object for what is no HTTP."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kernelflume.router.errors import http_error


class ErrorObjectProtocol(HttpToolsProtocol):
    """Answers requests that never reach the application in the shape of all other errors."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, and close the connection."""
        body = http_error(400, msg).to_json().encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
