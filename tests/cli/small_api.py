"""An API server that knows a few answers by heart, and a kubeconfig for it: for what the command makes of them."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@contextmanager
def small_api(state: Path, answers: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Serve the answers by their paths, with a local fleet's kubeconfig in `state`; yield the server's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = answers.get(urlsplit(self.path).path)
            content = json.dumps(known or {"kind": "Status", "message": "no such thing", "details": {"name": "it"}})
            self.send_response(200 if known else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content.encode())))
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        (state / "kubeconfig").write_text(
            "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
            f" clusters: [{{name: c, cluster: {{server: '{url}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        )
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield url
        finally:
            server.shutdown()
            serving.join()
