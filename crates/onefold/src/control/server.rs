//! The daemon's end of the control socket.
//!
//! One thread serves all connections and never carries out a request itself: requests wait for the disk, so
//! each runs on a blocking thread and sends its events to this one.

use super::connections::{Connections, Permit, Permits, Stage};
use super::frame::{PieceBody, PieceDecoder};
use super::{Event, NOT_UNDERSTOOD, REQUEST_HEADER, SIZE_HEADER, other_socket_paths, socket_path};
use crate::descriptors::{Spare, are_lacking};
use crate::http::serve_connection;
use crate::limits::{
    ACCEPT_RETRY_PAUSE, ACCEPT_WARNING_INTERVAL, CONTROL_BODY_BYTES_MAX, CONTROL_COMMANDS_MAX,
    CONTROL_EVENTS_MAX, CONTROL_REQUEST_TIME_MAX, CONTROL_REQUEST_TIME_MIN, IMPORT_PAUSE_MAX,
    TRANSFERS_MAX,
};
use crate::version::BUILD;
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Frame;
use onefold_api::transfer::{
    Export, IMPORT_PATH, MetadataExport, Piece, PieceSender, VolumeExport, VolumeImport, transfer,
};
use onefold_api::{Error, ErrorKind, Request, Result, Service, Versioned, Visitor, visit_requests};
use onefold_nbd::{SocketName, lacks_space, listen_unix};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// Receives the lines of an answer, each with the HTTP status to use if it is the first.
type LineSender = mpsc::Sender<(StatusCode, Bytes)>;

/// The listening socket. Dropping it removes the socket's file.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    _name: SocketName,
}

impl ControlSocket {
    /// Listens in the pool's directory, or elsewhere if that has no room for a socket. Must run within a
    /// tokio runtime with I/O. The caller holds the pool's lock, so no other daemon runs, and an existing
    /// socket is stale and is replaced.
    pub(crate) fn bind(pool: &Path) -> Result<Self> {
        let path = socket_path(pool);
        let bound = listen_unix(&path, SOCKET_MODE, None).or_else(|error| {
            if lacks_space(&error) {
                bind_elsewhere(pool).ok_or(error)
            } else {
                Err(error)
            }
        });
        let failed =
            |e: &io::Error| Error::io(format_args!("cannot listen on {}", path.display()), e);
        let (listener, name) = bound.map_err(|e| failed(&e))?;
        listener.set_nonblocking(true).map_err(|e| failed(&e))?;
        Ok(Self {
            listener: UnixListener::from_std(listener).map_err(|e| failed(&e))?,
            _name: name,
        })
    }

    /// Serves until the future is dropped.
    pub(crate) async fn serve(&self, service: Service) -> Infallible {
        let routes = routes(service);
        let mut connections = Connections::default();
        let mut spare = Spare::new();
        let mut warned: Option<Instant> = None;
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = connections.one_ended() => {
                    spare.refill();
                    continue;
                }
            };
            match accepted {
                Ok((stream, _)) => {
                    connections.make_room().await;
                    let stage = Stage::default();
                    // A connection has one request, so the two share a stage.
                    let routes = routes.clone().layer(Extension(stage.clone()));
                    let task = serve_connection(stream, routes);
                    connections.add(stage, task);
                    spare.refill();
                }
                // Without a free descriptor, `accept` fails immediately, whether or not a client waits.
                Err(error) if are_lacking(&error) && !is_awaited(&self.listener) => {
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                }
                Err(error) => {
                    if warned.is_none_or(|at| at.elapsed() >= ACCEPT_WARNING_INTERVAL) {
                        tracing::warn!(%error, "cannot accept a control connection");
                        warned = Some(Instant::now());
                    }
                    if !are_lacking(&error) || !spare.give_up() {
                        connections.drop_idle(CONTROL_REQUEST_TIME_MIN);
                        tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                    }
                }
            }
        }
    }
}

/// Whether a connection waits to be accepted.
fn is_awaited(listener: &UnixListener) -> bool {
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Only the owner can connect, because every client may do everything.
const SOCKET_MODE: u32 = 0o600;

fn bind_elsewhere(pool: &Path) -> Option<(StdUnixListener, SocketName)> {
    let mut paths = other_socket_paths(pool).into_iter();
    paths.find_map(|path| {
        fs::create_dir_all(path.parent()?).ok()?;
        let bound = listen_unix(&path, SOCKET_MODE, None).ok()?;
        tracing::warn!(
            "the pool's directory has no room for a socket: commands find the daemon at {}",
            path.display()
        );
        Some(bound)
    })
}

struct Server {
    service: Service,
    permits: Permits,
}

/// Builds the routes of all requests of the API.
fn routes(service: Service) -> Router {
    let mut routes = Routes(Router::new());
    visit_requests(&mut routes);
    let server = Server {
        service,
        permits: Permits::new(),
    };
    routes
        .0
        .route(IMPORT_PATH, post(import))
        .route(VolumeExport::PATH, post(export::<VolumeExport>))
        .route(MetadataExport::PATH, post(export::<MetadataExport>))
        .route(OPENAPI_PATH, get(openapi))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::new(server))
}

/// The path of the OpenAPI document.
const OPENAPI_PATH: &str = "/openapi.json";

struct Routes(Router<Arc<Server>>);

impl Visitor for Routes {
    fn request<R: Request>(&mut self) {
        self.0 = std::mem::take(&mut self.0).route(R::PATH, post(run::<R>));
    }
}

async fn openapi() -> Response {
    let json = onefold_api::openapi::json(BUILD);
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}

async fn wrong_method() -> Response {
    refusal(StatusCode::METHOD_NOT_ALLOWED, Error::usage("use POST"))
}

async fn unknown(uri: Uri) -> Response {
    let path = uri.path();
    let message = format!("this daemon has nothing at {path}; is it an older version?");
    refusal(StatusCode::NOT_FOUND, Error::failed(message))
}

async fn run<R: Request>(
    State(server): State<Arc<Server>>,
    Extension(stage): Extension<Stage>,
    body: Body,
) -> Response {
    let request: R = match body_json(body).await {
        Ok(request) => request,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, error),
    };
    let Some(permit) = server.permits.for_command(&stage) else {
        return busy();
    };
    answer_with(permit, move |events| {
        let caller = events.clone();
        let service = server
            .service
            .for_caller(Arc::new(move || caller.is_closed()));
        service.call(&request, &mut |done, all| {
            // Progress is optional: if the reader is slow, it is dropped. The last place is kept for the
            // result, so that a slow reader does not delay the end of the command.
            if events.capacity() > 1 {
                let progress = line(&Event::<()>::Progress { done, all });
                let _ = events.try_send((StatusCode::OK, progress));
            }
        })
    })
    .await
}

async fn import(
    State(server): State<Arc<Server>>,
    Extension(stage): Extension<Stage>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let import: VolumeImport = match header_json(&headers) {
        Ok(import) => import,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, error),
    };
    let Some(permit) = server.permits.for_transfer(&stage).await else {
        return busy();
    };
    let (sender, receiver) = transfer();
    // Continues after the reply: a client that still sends data when it is refused must be able to read the
    // reason before its connection is closed.
    tokio::spawn(receive_pieces(body, sender));
    answer_with(permit, move |_| import.run(&server.service, receiver)).await
}

async fn export<E: Export>(
    State(server): State<Arc<Server>>,
    Extension(stage): Extension<Stage>,
    body: Body,
) -> Response {
    let export: E = match body_json(body).await {
        Ok(export) => export,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, error),
    };
    let Some(permit) = server.permits.for_transfer(&stage).await else {
        return busy();
    };
    let opened = spawn_blocking(move || export.open(&server.service)).await;
    let opened = match opened.unwrap_or_else(|e| Err(Error::failed(e.to_string()))) {
        Ok(opened) => opened,
        Err(error) => return refusal(status_of(&error), error),
    };
    let size_bytes = opened.size_bytes();
    let (sender, receiver) = transfer();
    spawn_blocking(move || {
        let _permit = permit;
        opened.run(&sender);
    });
    let body = Body::new(PieceBody::new(receiver));
    ([(SIZE_HEADER, size_bytes.to_string())], body).into_response()
}

/// Forwards arriving bytes to the importing thread; after a failure there, discards them.
async fn receive_pieces(mut body: Body, pieces: PieceSender) {
    let mut decoder = PieceDecoder::default();
    loop {
        let frame = match tokio::time::timeout(IMPORT_PAUSE_MAX, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(_) => return,
            Err(_) => {
                let minutes = IMPORT_PAUSE_MAX.as_secs() / 60;
                let late = format!("nothing of the image arrived for {minutes} minutes");
                let _ = pieces.send(Err(Error::failed(late))).await;
                return;
            }
        };
        let Ok(mut input) = frame.into_data() else {
            continue;
        };
        while !pieces.is_closed() {
            let piece = match decoder.next(&mut input) {
                Ok(None) => break,
                Ok(Some(piece)) => Ok(piece),
                Err(error) => Err(error),
            };
            let last = !matches!(piece, Ok(Piece::Data(_)));
            if pieces.send(piece).await.is_err() || last {
                break;
            }
        }
    }
}

/// Runs `work` on a blocking thread and streams the lines that it sends. The first line determines the
/// status, so the status is correct unless progress was reported before a failure.
async fn answer_with<R, W>(permit: Permit, work: W) -> Response
where
    R: Serialize + Send + 'static,
    W: FnOnce(&LineSender) -> Result<R> + Send + 'static,
{
    let (sender, mut lines) = mpsc::channel(CONTROL_EVENTS_MAX);
    spawn_blocking(move || {
        let last = match work(&sender) {
            Ok(result) => (StatusCode::OK, line(&Event::Result(Versioned::new(result)))),
            Err(error) => (status_of(&error), line(&Event::<()>::Error(error))),
        };
        drop(permit);
        let _ = sender.blocking_send(last);
    });
    // No line arrives only if the work panicked.
    let (status, first) = lines.recv().await.unwrap_or_else(|| {
        let error = Error::failed("the daemon failed at this; its log says how");
        (status_of(&error), line(&Event::<()>::Error(error)))
    });
    let lines = LineBody {
        first: Some(first),
        lines,
    };
    (status, LINES, Body::new(lines)).into_response()
}

/// The header of an answer with one line of JSON per event.
const LINES: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "application/jsonl")];

fn refusal(status: StatusCode, error: Error) -> Response {
    (status, LINES, line(&Event::<()>::Error(error))).into_response()
}

fn busy() -> Response {
    let message = format!(
        "the daemon is at work on as many commands as it can do at a time, {CONTROL_COMMANDS_MAX}, \
         or too many imports and exports wait for one of {TRANSFERS_MAX} to end; try again later"
    );
    refusal(StatusCode::SERVICE_UNAVAILABLE, Error::failed(message))
}

fn status_of(error: &Error) -> StatusCode {
    match error.kind {
        ErrorKind::Usage => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Exists | ErrorKind::InUse | ErrorKind::Failed | ErrorKind::Lost => {
            StatusCode::CONFLICT
        }
        ErrorKind::ReadOnly => StatusCode::FORBIDDEN,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Damaged => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn line<R: Serialize>(event: &Event<R>) -> Bytes {
    // Events consist of strings and numbers, so serialising them cannot fail.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    Bytes::from(line)
}

async fn body_json<T: DeserializeOwned + Serialize>(body: Body) -> Result<T> {
    let collected = Limited::new(body, CONTROL_BODY_BYTES_MAX).collect();
    let collected = tokio::time::timeout(CONTROL_REQUEST_TIME_MAX, collected)
        .await
        .map_err(|_| Error::usage("the request did not arrive in time"))?;
    let bytes = collected.map_err(|e| Error::usage(format!("cannot read the request: {e}")))?;
    request_of(&bytes.to_bytes(), "")
}

fn header_json<T: DeserializeOwned + Serialize>(headers: &HeaderMap) -> Result<T> {
    let header = headers.get(REQUEST_HEADER).map(|value| value.as_bytes());
    request_of(
        header.unwrap_or_default(),
        &format!(" in the header {REQUEST_HEADER}"),
    )
}

/// Parses a request. Unknown fields are refused: otherwise a misspelt option, or one from a later release,
/// would be ignored silently.
fn request_of<T: DeserializeOwned + Serialize>(json: &[u8], place: &str) -> Result<T> {
    let failed = |cause: &dyn Display| Error::usage(format!("{NOT_UNDERSTOOD}{place}: {cause}"));
    let found: Value = serde_json::from_slice(json).map_err(|e| failed(&e))?;
    let request = T::deserialize(&found).map_err(|e| failed(&e))?;
    // serde's own check for unknown fields does not work with flattened fields. A request serialises all of
    // its fields.
    let known = serde_json::to_value(&request).map_err(|e| failed(&e))?;
    let mut fields = found
        .as_object()
        .into_iter()
        .flat_map(|object| object.keys());
    match fields.find(|field| known.get(field).is_none()) {
        Some(field) => Err(failed(&format_args!("it has no field '{field}'"))),
        None => Ok(request),
    }
}

/// The body of an answer, line by line.
struct LineBody {
    first: Option<Bytes>,
    lines: mpsc::Receiver<(StatusCode, Bytes)>,
}

impl hyper::body::Body for LineBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => {
                let received = self.lines.poll_recv(cx);
                received.map(|line| line.map(|(_, line)| Ok(Frame::data(line))))
            }
        }
    }
}
