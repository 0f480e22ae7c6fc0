//! Serves one HTTP connection, on the control socket or for monitoring.

use crate::limits::CONTROL_REQUEST_TIME_MAX;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};

/// Answers one request on a connection. A client that sends its header too slowly is disconnected.
pub(crate) async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    routes: Router,
) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONTROL_REQUEST_TIME_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    if let Err(error) = connection.await {
        tracing::debug!(%error, "an HTTP connection ended early");
    }
}
