"""Connections to web servers: verified TLS, proxies from the environment, and time limits on every part."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from urllib.parse import unquote
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InvalidHeader,
    LocationValueError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.response import BaseHTTPResponse, HTTPResponse
from urllib3.util import parse_url

from bitstrata.device.pace import Patience, limited
from bitstrata.errors import BadSource, FetchFailed, Interrupted, SourceMisbehaves, SourceUnreachable

_PRIVATE: ContextVar[bool] = ContextVar("bitstrata_private", default=False)


def _without_query(record: logging.LogRecord) -> bool:
    """urllib3 logs whole addresses; of ours none is shown with its query, which may be a signature."""
    if _PRIVATE.get() and isinstance(record.args, tuple):
        record.args = tuple(part.split("?")[0] if isinstance(part, str) else part for part in record.args)
    return True


logging.getLogger("urllib3.connectionpool").addFilter(_without_query)


class Connections:
    """Sends requests, one connection for many where the server keeps it open. Redirects are the caller's matter."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._timeout = urllib3.Timeout(connect=patience.connect, read=patience.stall)
        self._managers: dict[tuple[str | None, bool], urllib3.PoolManager] = {}

    def get(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """The answer, its body still to be read. Errors are urllib3's; `explain` makes them ours."""
        manager = self._manager(proxy_of(url), secure=parse_url(url).scheme == "https")
        private = _PRIVATE.set(True)
        try:
            return manager.urlopen(
                "GET",
                url,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                headers=headers,
                timeout=self._timeout,
            )
        finally:
            _PRIVATE.reset(private)

    def _manager(self, proxy: str | None, secure: bool) -> urllib3.PoolManager:
        manager = self._managers.get((proxy, secure))
        if manager is None:
            manager = self._managers[proxy, secure] = _open_manager(proxy, secure)
        return manager


def proxy_of(url: str) -> str | None:
    """The proxy that the environment sets for an address, as other programs read it."""
    parsed = parse_url(url)
    host = (parsed.host or "").strip("[]")
    if proxy_bypass(host) or (parsed.port and proxy_bypass(f"{host}:{parsed.port}")):
        return None
    proxies = getproxies()
    proxy = proxies.get(parsed.scheme or "") or proxies.get("all")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def explain(error: Exception, place: str, patience: Patience) -> FetchFailed:
    """Our error for one of urllib3's, whose text is not used: it may show addresses with what is secret in them."""
    by_proxy = ""
    if isinstance(error, ProxyError):
        by_proxy = "the proxy that the environment sets: "
        error = error.original_error
    cause = _innermost(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return SourceUnreachable(
            f"{place}: {by_proxy}its certificate is not accepted ({cause.verify_message}). Where it is signed by an "
            f"authority of your own, name that one's file in SSL_CERT_FILE; and see that the clock is right"
        )
    if isinstance(error, LocationValueError):
        return BadSource(f"{place}: no host has such a name")
    if isinstance(error, InvalidHeader):
        return SourceMisbehaves(f"{place}: {by_proxy}the headers of the answer contradict each other")
    if isinstance(error, NameResolutionError):
        what = "the name of the host is not known; is there a network?"
    elif isinstance(error, ConnectTimeoutError) and not isinstance(error, NewConnectionError):
        what = f"no connection within {patience.connect:g} s"
    elif isinstance(error, (ReadTimeoutError, TimeoutError)):
        what = f"nothing came for {patience.stall:g} s"
    elif isinstance(error, NewConnectionError):
        what = "no connection: " + ((isinstance(cause, OSError) and cause.strerror) or "refused")
    elif isinstance(error, SSLError):
        what = "the encrypted connection broke"
    else:
        what = "the connection broke"
    return Interrupted(f"{place}: {by_proxy}{what}")


def _innermost(error: BaseException) -> BaseException:
    """What the system said, beneath what others made of it."""
    seen = 0
    while seen < 16:
        inner = next((part for part in error.args if isinstance(part, BaseException)), None)
        inner = inner or error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if inner is None:
            break
        error, seen = inner, seen + 1
    return error


class _PromptConnection(HTTPConnection):
    """One whose headers must come whole within the time limit; by themselves they could drip for days."""

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        connection = self.sock
        seconds = self.timeout
        if not isinstance(connection, socket.socket) or not isinstance(seconds, (int, float)):
            return super().getresponse()
        # Beneath TLS: its own shutdown would let the reader take what is encrypted for what is not.
        with limited(seconds, lambda: socket.socket.shutdown(connection, socket.SHUT_RDWR)):
            return super().getresponse()


class _PromptSecureConnection(_PromptConnection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _PromptConnection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _PromptSecureConnection


def _open_manager(proxy: str | None, secure: bool) -> urllib3.PoolManager:
    # The system's authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR; reading them takes a while.
    secure = secure or (proxy is not None and proxy.startswith("https:"))
    context = ssl.create_default_context() if secure else None
    manager: urllib3.PoolManager
    if proxy is None:
        manager = urllib3.PoolManager(num_pools=8, maxsize=8, ssl_context=context)
    else:
        try:
            parsed = parse_url(proxy)
            secret = urllib3.make_headers(proxy_basic_auth=unquote(parsed.auth)) if parsed.auth else None
            manager = urllib3.ProxyManager(
                parsed._replace(auth=None).url,
                num_pools=8,
                maxsize=8,
                proxy_headers=secret,
                proxy_ssl_context=context,
                ssl_context=context,
            )
        except (HTTPError, AssertionError, UnicodeError):
            raise SourceUnreachable(
                "the environment sets a proxy that is no http or https address; no others can be used. Correct "
                "HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, or name the host in NO_PROXY"
            ) from None
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager
